# vitkit serve in a container:
#
#   vitkit export runs/photos -o model.onnx
#   docker build -t vitkit-serve .
#   docker run --rm -p 8000:8000 -v "$PWD/model.onnx:/models/model.onnx:ro" vitkit-serve
#
# vitkit depends on PyTorch, though an exported file is served without importing it; with
# --build-arg PIP_EXTRA_INDEX_URL=..., PyTorch's own index for CPUs, the image is some gigabytes
# smaller. It runs as a user without rights, needs no disk to write to (--read-only --tmpfs /tmp), and
# ends within --grace seconds of `docker stop`, when all accepted requests are answered: docker waits
# 10 seconds by itself, so give it --stop-timeout 40.
FROM python:3.12-slim

RUN groupadd --gid 10001 vitkit \
    && useradd --no-log-init --uid 10001 --gid 10001 --create-home vitkit
WORKDIR /app
COPY pyproject.toml README.md LICENSE ./
COPY src src
ARG PIP_EXTRA_INDEX_URL
# hadolint ignore=DL3013
RUN pip install --no-cache-dir '.[serve,fast]' onnxruntime

# By number: Kubernetes refuses `runAsNonRoot` for a name, which it cannot look up
USER 10001:10001
ENV PYTHONUNBUFFERED=1
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=4)"]
ENTRYPOINT ["vitkit", "serve"]
CMD ["/models/model.onnx", "--host", "0.0.0.0", "--port", "8000"]
