#!/bin/bash
# When does speculation pay on a real SGLang, and does the policy that follows keep its promise? An 8B-shaped
# constructed pair: the baseline, chains of seven and of two draft tokens, and an adaptive server beside them.
# Usage: bench.sh measure|verify PAYLOAD VENV OUT. The fourth server of measure follows the policy of an earlier record
# with the chain of two left out, which switches speculation off; that of verify follows OUT/pair.json, which measure
# wrote. Servers of measure that still run are used by verify.
set -u
what=$1 payload=$2 venv=$3 out=$4
here=$(dirname "$0")
python="$venv/bin/python3"
models=${MODELS:-/tmp/m/m8b}
earlier=${EARLIER:-$here/../../docs/bench/h200/pair.json}
levels=${LEVELS:-1,2,5,10,30,70,100,250}
load=(--requests "${REQUESTS:-3}" --tokens "${TOKENS:-96}" --repeats "${REPEATS:-6}" --budget "${BUDGET:-400}")
began=$SECONDS
export STACKB_STATE_DIR=${STATE:-/tmp/stackb-state} STACKB_CACHE_DIR=${CACHE:-/tmp/stackb-cache} COLUMNS=140
# What several servers on one Hopper GPU need beside the stack's own arguments, which are for SM120; the same in all
# arms. A limit above the highest level (EAGLE-3 alone would set 48), graphs for every batch up to it, and no more
# cache than they use: each takes what --max-total-tokens asks. A server that idles leaves its core to the one that is
# measured. At 250 clients a stream that is sent token by token keeps SGLang's one process for HTTP busier than the GPU.
shared=(--attention-backend fa3 --max-running-requests 256 --cuda-graph-max-bs-decode 256 --mem-fraction-static 0.95
    --max-total-tokens 100000 --context-length 4096 --cuda-graph-backend-prefill disabled --sleep-on-idle
    --stream-interval 4)
mkdir -p "$out"
# seconds until what was measured has to do, of the ten minutes that one call may take
left() { echo "$((${UNTIL:-560} - (SECONDS - began)))"; }
said() { echo "[$((SECONDS - began)) s] $*"; }
stackb() { "$python" -m stack_builder "$@"; }
# serve PORT NAME ARGUMENTS...: the server's report is kept under its name
serve() {
    local port=$1 name=$2
    shift 2
    stackb serve cu130-sglang-0.5.17 --in local --venv "$venv" --skip-preflight --detach --format json --port "$port" \
        "$@" >"$out/serve-$name.json" 2>"$out/serve-$name.err"
    said "serve $name: exit $?"
}
chain() { serve "$1" "$2" --spec eagle3 --model "$models/target" --draft "$models/draft" "${@:4}" -- "${shared[@]}" \
    --speculative-num-steps "$3" --speculative-num-draft-tokens "$(($3 + 1))"; }
bodies() { for path in server_info v1/loads metrics; do
    curl -s -m 10 "http://127.0.0.1:$1/$path" >"$out/body-$2-${path//\//-}"
done; }
logs() { for port in 30001 30002 30003 30004 30005; do
    [ ! -f "$STACKB_STATE_DIR/servers/$port.log" ] || cp "$STACKB_STATE_DIR/servers/$port.log" "$out/$what-$port.log"
done; }
trap logs EXIT

# policy PORT NAME RESULTS OPTIONS...: a server that follows what these results say
policy() {
    local port=$1 name=$2 variables steps
    shift 2
    stackb policy "$@" --output "$out/$name.json" >"$out/policy-$name.txt" 2>&1
    said "policy $name: exit $?"
    steps=$(sed -n 's/.*--speculative-num-steps \([0-9]*\).*/\1/p' "$out/policy-$name.txt" | head -1)
    variables=$(grep -o 'SGLANG_[A-Z_]*=1' "$out/policy-$name.txt" | sort -u)
    # shellcheck disable=SC2086
    [ -z "$variables" ] || export $variables
    chain "$port" "$name" "$steps" --adaptive "$out/$name.json"
}

statics=(--pair base=http://127.0.0.1:30001 --pair chain7=http://127.0.0.1:30002 --pair chain2=http://127.0.0.1:30003)
[ -d "$models" ] || "$python" "$payload/tools/gen_model.py" --out "$models" --tok "$payload/tok" --hidden 4096 \
    --inter 14336 --layers 32 --heads 32 --kv 8 --vocab 128256 --draftvocab 32000 --share 0.7 --dinter 14336 || exit 1
said models
if ! stackb serve --status | grep -q '^30003.running'; then
    serve 30001 base --spec none --model "$models/target" -- "${shared[@]}" &
    sleep 2
    chain 30002 chain7 7 &
    sleep 2
    chain 30003 chain2 2 &
    sleep 2
fi
if [ "$what" = measure ]; then
    policy 30004 seven-or-off "$earlier" --without chain2 &
    wait
    timeout -s INT "$(left)" "$python" -m stack_builder bench "${statics[@]}" \
        --pair seven-or-off=http://127.0.0.1:30004 --api generate --concurrency "$levels" "${load[@]}" \
        --output "$out/pair.json" >"$out/pair.txt" 2>"$out/pair.err"
    said "bench: exit $?"
    stackb serve --stop --port 30004
else
    policy 30005 adaptive "$out/pair.json" &
    wait
    bodies 30001 base
    timeout -s INT "$(left)" "$python" -m stack_builder policy "$out/pair.json" --verify "${statics[@]}" \
        --pair adaptive=http://127.0.0.1:30005 "${load[@]}" --results-output "$out/verify.json" \
        >"$out/verify.txt" 2>"$out/verify.err"
    said "verify: exit $?"
    bodies 30005 adaptive
    for port in 30001 30002 30003 30005; do stackb serve --stop --port "$port"; done
fi
grep -hE 'daptive|Traceback|Error' "$STACKB_STATE_DIR"/servers/3000[45].log | cut -c1-160 | tail -12
