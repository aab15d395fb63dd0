#!/bin/bash
# When does speculation pay on a real SGLang, and does the policy that follows keep its promise? An 8B-shaped
# constructed pair; the baseline, chains of seven and of two draft tokens, then the policy beside all three.
# Usage: run.sh measure|verify PAYLOAD VENV OUT; verify reads OUT/pair.json, which measure wrote.
set -u
what=$1 payload=$2 venv=$3 out=$4
here=$(dirname "$0")
python="$venv/bin/python3"
models=${MODELS:-/tmp/m/m8b}
levels=${LEVELS:-1,2,5,10,30,70,100,250}
tokens=${TOKENS:-256}
began=$SECONDS
export STACKB_STATE_DIR=${STATE:-/tmp/state} STACKB_CACHE_DIR=${CACHE:-/tmp/stackb-cache} COLUMNS=140
mkdir -p "$out"
said() { echo "[$((SECONDS - began)) s] $*"; }
stackb() { "$python" -m stack_builder "$@"; }
# serve PORT NAME ARGUMENTS...: the server's report and log are kept under its name
serve() {
    local port=$1 name=$2
    shift 2
    stackb serve "$here" --in local --venv "$venv" --skip-preflight --detach --format json --port "$port" "$@" \
        >"$out/serve-$name.json" 2>"$out/serve-$name.err"
    said "serve $name: exit $?"
}
chain() { serve "$1" "$2" --spec eagle3 --model "$models/target" --draft "$models/draft" "${@:4}" -- \
    --speculative-num-steps "$3" --speculative-num-draft-tokens "$(($3 + 1))"; }
stop() { for port; do stackb serve --stop --port "$port" >/dev/null 2>&1; done; }
bodies() { for path in server_info v1/loads metrics; do
    curl -s -m 10 "http://127.0.0.1:$1/$path" >"$out/body-$2-${path//\//-}"
done; }
logs() { for port in 30001 30002 30003 30004; do
    [ ! -f "$STACKB_STATE_DIR/servers/$port.log" ] || cp "$STACKB_STATE_DIR/servers/$port.log" "$out/$what-$port.log"
done; }
trap logs EXIT

if [ ! -d "$models" ]; then
    "$python" "$payload/tools/gen_model.py" --out "$models" --tok "$payload/tok" --hidden 4096 --inter 14336 \
        --layers 32 --heads 32 --kv 8 --vocab 128256 --draftvocab "${DRAFTVOCAB:-32000}" --share "${SHARE:-0.7}" --dinter 14336 || exit 1
    said models
fi
statics=(--pair base=http://127.0.0.1:30001 --pair chain7=http://127.0.0.1:30002 --pair chain2=http://127.0.0.1:30003)
fourth=adaptive
if [ "$what" = measure ]; then # what switching off costs: an adaptive server that never drafts
    fourth=off
    echo '{"1": {"candidate_steps": [0]}, "1000": {"candidate_steps": [2]}}' >"$out/off.json"
fi
serve 30001 base --spec none --model "$models/target" &
sleep 2
chain 30002 chain7 7 &
sleep 2
chain 30003 chain2 2 &
sleep 2
if [ "$fourth" = off ]; then
    SGLANG_SPEC_SKIP_ZERO_STEP_DRAFT_EXTEND=1 chain 30004 off 2 --adaptive "$out/off.json" &
else
    stackb policy "$out/pair.json" --output "$out/adaptive.json" >"$out/policy.txt" 2>&1
    said "policy: exit $?"
    steps=$(sed -n 's/.*--speculative-num-steps \([0-9]*\).*/\1/p' "$out/policy.txt" | head -1)
    variables=$(grep -o 'SGLANG_[A-Z_]*=1' "$out/policy.txt" | sort -u | tr '\n' ' ')
    said "variables: $variables steps: $steps"
    # shellcheck disable=SC2086
    [ -z "$variables" ] || export $variables
    chain 30004 adaptive "$steps" --adaptive "$out/adaptive.json" &
fi
wait
bodies 30001 base
bodies 30004 "$fourth"
grep -hE 'daptive|Traceback|Error' "$STACKB_STATE_DIR/servers/30004.log" | cut -c1-200 | tail -12
if [ "$what" = measure ]; then
    timeout -s INT "${BENCH_LIMIT:-300}" "$python" -m stack_builder bench "${statics[@]}" \
        --pair off=http://127.0.0.1:30004 --api generate --concurrency "$levels" --tokens "$tokens" --requests 1 \
        --repeats "${REPEATS:-4}" --max-repeats 6 --budget "${BUDGET:-220}" --output "$out/pair.json" \
        >"$out/pair.txt" 2>"$out/pair.err"
    said "bench: exit $?"
    stackb policy "$out/pair.json" --output "$out/adaptive.json" >"$out/policy.txt" 2>&1
    said "policy: exit $?"
else
    timeout -s INT "${BENCH_LIMIT:-400}" "$python" -m stack_builder policy "$out/pair.json" --verify "${statics[@]}" \
        --pair adaptive=http://127.0.0.1:30004 --repeats "${REPEATS:-5}" --budget "${BUDGET:-385}" \
        --requests "${REQUESTS:-2}" --tokens "${VERIFY_TOKENS:-128}" --results-output "$out/verify.json" >"$out/verify.txt" 2>"$out/verify.err"
    said "verify: exit $?"
fi
bodies 30002 chain7-after
stop 30001 30002 30003 30004
said stopped
