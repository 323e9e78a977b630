#!/bin/bash
# Two hosts (network namespaces and a cable between them), one run: the cable is pulled and put back, then a host is lost and
# comes back; the result is that of one undisturbed process. Needs root and iproute2, takes some minutes: sudo tests/two_hosts.sh
set -eu
runs=$(mktemp -d)
export OMP_NUM_THREADS=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1  # or a new agent is never told where the others meet
settings="--length 60 --batch 48 --micro-batch 24 --save-every 10 --evaluate-every 60 --log-every 1 --optim.name sgd
    --optim.lr 0.02 --optim.warmup 5 --model.width 24 --model.depth 2 --model.mlp 48 --model.heads 2 --data.workers 1 --device cpu"

finish() {
    for n in 1 2; do kill -9 $(ip netns pids vitkit-$n) || true; ip netns del vitkit-$n; done 2> /dev/null
    wait 2> /dev/null
    rm -rf "$runs"
}
trap finish EXIT
ip link add vitkit-1 type veth peer name vitkit-2
for n in 1 2; do
    ip netns add vitkit-$n
    ip link set vitkit-$n netns vitkit-$n
    ip -n vitkit-$n addr add 10.77.1.$n/24 dev vitkit-$n
    ip -n vitkit-$n link set lo up
    ip -n vitkit-$n link set vitkit-$n up
done

host() {  # of a number: its agent, its words in a file
    GLOO_SOCKET_IFNAME=vitkit-$1 ip netns exec vitkit-$1 python -m torch.distributed.run --nnodes 2 --nproc-per-node 1 \
        --max-restarts 3 --local-addr 10.77.1.$1 \
        --rdzv-backend c10d --rdzv-endpoint 10.77.1.1:29500 --rdzv-conf is_host=$(($1 == 1)) --rdzv-id two \
        -m vitkit train digits --workdir "$runs/two" $settings --patience 15 >> "$runs/said-$1" 2>&1 &
}
until_said() {  # a number, a sentence: until that host has said it
    for _ in $(seq 240); do grep -q "$2" "$runs/said-$1" && return; sleep 1; done
    echo "host $1 never said: $2"; cat "$runs"/said-*; exit 1
}

host 1
host 2
until_said 1 " 20/60 "
ip -n vitkit-2 link set vitkit-2 down
until_said 1 "vitkit: rank . did not answer"
until_said 2 "cannot reach the others; look at the network"
ip -n vitkit-2 link set vitkit-2 up
until_said 1 "continuing at step"
until_said 1 " 35/60 "
kill -9 $(ip netns pids vitkit-2)
until_said 1 "vitkit: rank . lost contact with another one"
host 2
wait %1 || { cat "$runs"/said-*; exit 1; }
grep -h "vitkit:\|continuing" "$runs"/said-*

python -m vitkit train digits --workdir "$runs/one" $settings > /dev/null
python - "$runs" << 'END'
import sys
import torch
from safetensors.torch import load_file
two, one = (load_file(f"{sys.argv[1]}/{name}/model/model.safetensors") for name in ("two", "one"))
torch.testing.assert_close(two, one, atol=1e-5, rtol=1e-4)
print("the same weights as one undisturbed process")
END
