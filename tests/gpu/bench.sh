#!/bin/bash
# Measure when speculation pays, on a real SGLang: baseline against EAGLE-3 with a chain of seven, an 8B-shaped
# constructed pair. Usage: bench.sh PAYLOAD VENV OUT
set -u
payload=$1 venv=$2 out=$3
here=$(dirname "$0")
python="$venv/bin/python3"
stackb() { STACKB_STATE_DIR=/tmp/state STACKB_CACHE_DIR=/tmp/stackb-cache "$python" -m stack_builder "$@"; }
mkdir -p "$out"
"$python" "$payload/tools/gen_model.py" --out /tmp/m/m8b --tok "$payload/tok" --hidden 4096 --inter 14336 --layers 32 \
    --heads 32 --kv 8 --vocab 128256 --draftvocab 32000 --dinter 14336 || exit 1
common=(--mem-fraction-static 0.35 --max-total-tokens 200000 --max-running-requests 256 --cuda-graph-max-bs 256)
chain=(--speculative-num-steps 7 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8)
start() { stackb serve "$here/stack" --in local --venv "$venv" --skip-preflight --detach --format json "$@"; }
start --port 30001 --spec none --model /tmp/m/m8b/target -- "${common[@]}" >"$out/base.json" 2>"$out/base.err" &
first=$!
sleep 28 # the second server measures the memory that the first has taken
start --port 30002 --spec eagle3 --model /tmp/m/m8b/target --draft /tmp/m/m8b/draft -- "${common[@]}" "${chain[@]}" \
    >"$out/eagle.json" 2>"$out/eagle.err"
echo "eagle3: $?"
wait $first
echo "none: $?"
timeout -s INT "${BENCH_LIMIT:-240}" "$python" -m stack_builder bench \
    --pair base=http://127.0.0.1:30001 --pair eagle3=http://127.0.0.1:30002 --api generate \
    --concurrency 1,2,5,10,30,70,100,250 --tokens 128 --requests 1 --repeats 4 --max-repeats 6 --budget 150 \
    --output "$out/pair.json" >"$out/pair.txt" 2>"$out/pair.err"
echo "bench: $?"
stackb policy "$out/pair.json" --sglang-version 0.5.14 --output "$out/adaptive-0.5.14.json" >"$out/policy-0.5.14.txt" 2>&1
echo "policy for 0.5.14: $?"
stackb policy "$out/pair.json" >"$out/policy.txt" 2>&1
echo "policy: $?"
stackb history "$out/pair.json" --format html --output "$out/page.html" 2>&1 | tail -2
stackb history "$out/pair.json" --plot "$out/curves.svg" 2>&1 | tail -2
stackb serve --stop --port 30001
stackb serve --stop --port 30002
