#!/usr/bin/env bash
# One GPU hour, prepared: every measurement that needs a GPU, as a queue of pieces, the most valuable
# first.
#
#   bash benchmarks/gpu.sh                       all pieces, on cuda
#   bash benchmarks/gpu.sh --subset              the first ones, smaller, in at most 12 minutes
#   bash benchmarks/gpu.sh --list                their names
#   bash benchmarks/gpu.sh forward step          some of them
#   bash benchmarks/gpu.sh --device cpu          all of them at toy size, to see that they work
#
# A piece is stopped after nine minutes: a run saves itself then, and the same command continues it.
# One that fails does not end the queue. A piece that is done is skipped: what it measured is under
# --results (benchmarks/results/gpu), where its log is too. Remove NAME.done to measure again.
#
#   PYTHON=python        the interpreter
#
# The training pieces need data:
#
#   CIFAR10=DIR          CIFAR-10 in any form that vitkit reads, with its train and test parts
#   TINY_IMAGENET=DIR    Tiny ImageNet, or its first 100 classes
set -u -o pipefail
cd "$(dirname "$0")/.." || exit 1

device=cuda
results=benchmarks/results/gpu
subset=
pieces=()
all=(correctness run_step same_bits sharding step large variants graphs forward attention loader cifar10 tiny_imagenet pretraining)
while [ $# -gt 0 ]; do
    case $1 in
        --device) device=$2; shift 2 ;;
        --results) results=$2; shift 2 ;;
        --subset) subset=yes; shift ;;
        --list) printf '%s\n' "${all[@]}"; exit 0 ;;
        -*) echo "gpu.sh: unknown option $1 (--device, --results, --subset, --list)" >&2; exit 2 ;;
        *) pieces+=("$1"); shift ;;
    esac
done
declare -A limits=() # seconds of each piece
for piece in "${all[@]}"; do limits[$piece]=540; done
if [ -n "$subset" ]; then
    [ ${#pieces[@]} -gt 0 ] || pieces=(correctness run_step same_bits sharding step large)
    limits+=([correctness]=240 [run_step]=150 [same_bits]=40 [sharding]=80 [step]=120 [large]=90)
fi
[ ${#pieces[@]} -gt 0 ] || pieces=("${all[@]}")
for piece in "${pieces[@]}"; do
    if [ -z "${limits[$piece]:-}" ]; then
        echo "gpu.sh: no piece $piece; there are: ${all[*]}" >&2
        exit 2
    fi
done
mkdir -p "$results" || exit 1
export VITKIT_TEST_DEVICE=$device PYTHONUNBUFFERED=1
python=${PYTHON:-python}

# Sizes: real ones on a GPU, toys on a CPU
models=(Ti/16 S/16 B/16) large=(L/16) batch=256 micro_batch=64 batches=(1 32 256) seconds=3
modes=(eager compiled) steps=() side=(--side 96 --steps 5000 --size gpu) rounds=3
small=(--batch 512 --steps 30) tokens=() compiled=(--compiled)
if [ -n "$subset" ]; then
    models=(B/16) seconds=2 modes=(compiled) rounds=1 small=(--batch 512 --steps 10)
fi
if [ "$device" = cpu ]; then
    models=(mu/16) large=(mu/16) batch=2 micro_batch=1 batches=(1) seconds=0.1 modes=(eager)
    steps=(--length 3 --batch 8 --optim.warmup 1 --evaluate-every 3 --save-every 3 --data.workers 1)
    side=(--side 32 --steps 60 --size laptop --seeds 1) rounds=1
    small=(--batch 8 --steps 1) tokens=(--tokens 65) compiled=()
fi

# The command of a piece, for as long as the piece may take
limited() {
    timeout --kill-after=60 "${limits[$piece]}" "$@"
}

# The pieces

correctness() { # models, gradients, runs, resuming, torchrun: as on the CPU
    limited "$python" -m pytest -W default -m "slow or not slow" tests/test_device.py
}

run_step() { # a run's own step: what it gains by waiting for nothing, its peak of memory beside plan's
    limited "$python" benchmarks/run_step.py --device "$device" --models "${models[@]}" "${large[@]}" \
        --batch "$batch" --micro-batch "$micro_batch" --seconds-per-row "$seconds" \
        --output "$results/run-step.json"
}

same_bits() { # whether two runs have them, and what it costs to be sure
    limited "$python" benchmarks/same_bits.py --device "$device" --models "${models[@]}" --batch "$batch" \
        --micro-batch "$batch" --output "$results/same-bits.json"
}

forward() { # images/s beside timm, Transformers and torchvision
    limited "$python" benchmarks/forward.py --device "$device" --models "${models[@]}" --batches "${batches[@]}" \
        --precisions autocast bfloat16 --modes "${modes[@]}" --seconds-per-row "$seconds" \
        --output "$results/forward.json"
}

step() { # training steps, with the share of the GPU's matrix rate that they reach (MFU)
    limited "$python" benchmarks/step.py --device "$device" --models "${models[@]}" --batches "$batch" \
        --precisions autocast --modes "${modes[@]}" --seconds-per-row "$seconds" \
        --peers timm transformers --output "$results/step.json"
}

large() { # the same for the paper's large models
    limited "$python" benchmarks/step.py --device "$device" --models "${large[@]}" --batches "$((batch / 2))" \
        --precisions autocast --modes "${modes[@]: -1}" --seconds-per-row "$seconds" \
        --peers timm --output "$results/step-large.json"
}

variants() { # what may make a step faster: each change beside the step as it is
    limited "$python" benchmarks/step_variants.py --device "$device" --models "${models[@]: -1}" --batch "$batch" \
        --micro-batch "$batch" "${compiled[@]}" --seconds-per-row "$seconds" --output "$results/step-variants.json"
}

graphs() { # CUDA graphs, which should help small models the most
    limited "$python" benchmarks/step_variants.py --device "$device" --models "${models[@]}" --batch "$batch" \
        --micro-batch "$batch" "${compiled[@]}" --variants "CUDA graphs" --seconds-per-row "$seconds" \
        --output "$results/step-graphs.json"
}

sharding() { # FSDP2 on one GPU: the same loss, and what it costs
    limited "$python" benchmarks/sharding.py --device "$device" --models "${models[@]: -1}" --batches "$batch" \
        --precision bfloat16 --seconds-per-row "$seconds" --output "$results/sharding.json"
}

attention() { # the fused kernel and two plain products
    limited "$python" benchmarks/attention.py --device "$device" --rounds "$rounds" \
        "${tokens[@]}" --output "$results/attention.json"
}

loader() { # batches of small images that reach the GPU
    limited "$python" benchmarks/small.py --device "$device" --data "${CIFAR10:?is where CIFAR-10 is}" \
        "${small[@]}" --rounds "$rounds" --output "$results/loader.json"
}

cifar10() { # from scratch; 14 minutes, if it reads the 18,000 images a second that an H200 did
    limited "$python" -m vitkit train cifar10 --data.source "${CIFAR10:?is where CIFAR-10 is}" \
        --device "$device" --workdir "$results/runs/cifar10" "${steps[@]}" &&
        cp "$results/runs/cifar10/metrics.jsonl" "$results/cifar10.jsonl"
}

tiny_imagenet() { # from scratch
    limited "$python" -m vitkit train tiny-imagenet --data.source "${TINY_IMAGENET:?is where Tiny ImageNet is}" \
        --device "$device" --workdir "$results/runs/tiny-imagenet" "${steps[@]}" &&
        cp "$results/runs/tiny-imagenet/metrics.jsonl" "$results/tiny-imagenet.jsonl"
}

pretraining() { # scratch, self-supervised, supervised (Section 4.6)
    limited "$python" benchmarks/pretraining.py --data "${TINY_IMAGENET:?is where Tiny ImageNet is}" \
        --target "${CIFAR10:?is where CIFAR-10 is}" --ways scratch masked supervised "${side[@]}" \
        --device "$device" --workdir "$results/runs/pretraining" --output "$results/pretraining.json"
}

# The queue

failed=()
for piece in "${pieces[@]}"; do
    if [ -e "$results/$piece.done" ]; then
        echo "== $piece: done already"
        continue
    fi
    echo "== $piece"
    if "$piece" 2>&1 | tee "$results/$piece.log"; then
        date -u +%Y-%m-%dT%H:%MZ >"$results/$piece.done"
    else
        failed+=("$piece")
    fi
done
[ ${#failed[@]} -eq 0 ] || { echo "gpu.sh: failed, or not finished: ${failed[*]}" >&2; exit 1; }
