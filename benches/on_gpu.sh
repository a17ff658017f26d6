#!/usr/bin/env bash
# Runs a bundle (`cargo xtask bundle`) on a machine with a GPU and leaves the files named below in OUT.
#
#   benches/on_gpu.sh BUNDLE OUT
#
# Every step has a time limit and the next one runs whatever became of it; the exit status is not 0 where any failed.
# Statuses of the script's own: 70 simulated, 71 to 73 the memory checker, 74 tests skipped, ignored or not finished.
# BUDGET_S (1200) bounds all steps together. STEPS chooses some, for example:
#   STEPS="machine tests examples beside copy pytorch load"
#   STEPS="machine tests examples beside"              what must hold next to other programs, nothing measured
#   STEPS="bench"                                      the groups cpu, cuda, streams and memory, twice
#   STEPS="bench" BENCH_ARGUMENTS="--only scaling"     what must not cost more the more there is, twice
#   STEPS="bench" BENCH_ARGUMENTS="--only scaling --parts confined --processors 2"  on fewer processors, twice
#   STEPS="bench" BENCH_ARGUMENTS="--only many"        many pieces at once, twice
#   STEPS="bench" BENCH_ARGUMENTS="--only beside"      blocks up and down while the device computes, twice (TRANSLOAD_CUBLAS names cuBLAS)
#   STEPS="bench" BENCH_ARGUMENTS="--only load"        files to devices and fresh memory, twice
#   STEPS="bench" BENCH_ARGUMENTS="--only wgpu"        Vulkan devices, twice (VK_ICD_FILENAMES names the driver's file, if the loader finds none)
#   STEPS="soak" ROUNDS=10 SOAK_ROUNDS=250             random tests; 250 rounds of the last are a million operations
#   STEPS="sanitizer"
#
# OUT: nvidia-smi.csv, tests.json, bench-1.json, bench-2.json, copy.json, pytorch.json, steps.json, log.txt
set -u -o pipefail

if [ $# -ne 2 ] || [ ! -d "$1" ]; then
  sed -n '2,22p' "$0" >&2
  exit 64
fi
here=$(cd "$(dirname "$0")" && pwd)
bundle=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
log=$out/log.txt
work=$(mktemp -d)
data=/dev/shm/transload-on-gpu.$$
trap 'rm -rf "$work" "$data"' EXIT
: >"$log"
: >"$work/steps"
deadline=$(($(date +%s) + ${BUDGET_S:-1200}))
failed=0
# The programs travel packed.
if compgen -G "$bundle/*.gz" >/dev/null; then
  mkdir "$work/bundle"
  ln -s "$bundle/manifest.json" "$work/bundle/"
  for file in "$bundle"/*.gz; do
    gunzip -c "$file" >"$work/bundle/$(basename "$file" .gz)" || exit 66
  done
  bundle=$work/bundle
fi
chmod +x "$bundle"/* "$bundle"/tests/* 2>/dev/null
export RUST_BACKTRACE=1 PYTHONUNBUFFERED=1 PATH=$PATH:/usr/local/cuda/bin
if [ -z "${TRANSLOAD_COMMIT:-}" ] && [ -f "$bundle/manifest.json" ]; then
  TRANSLOAD_COMMIT=$(python3 -c 'import json,sys; 
manifest = json.load(open(sys.argv[1]))
commit = manifest.get("commit") or ""
# Where files differed from the commit it is not what is measured here.
print(commit + "-modified" if commit and manifest.get("modified") else commit)' "$bundle/manifest.json")
fi
export TRANSLOAD_COMMIT=${TRANSLOAD_COMMIT:-}

wanted() { [ -z "${STEPS:-}" ] || [[ " $STEPS " == *" $1 "* ]]; }

# limited SECONDS COMMAND...: at most so long, and never past the deadline.
limited() {
  local most=$1 left=$((deadline - $(date +%s)))
  shift
  [ "$left" -gt "$most" ] && left=$most
  [ "$left" -lt 1 ] && { echo "no time is left for: $*" >&2; return 124; }
  timeout -k 5 "$left" "$@"
}

# note NAME STATUS SECONDS TEXT: a line of steps.json; a status other than 0 counts.
note() {
  [ "$2" -ne 0 ] && failed=1
  printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$work/steps"
  printf '%-34s %s  %3ss  %s\n' "$1" "$([ "$2" -eq 0 ] && echo ok || echo "FAILED ($2)")" "$3" "$4"
}

# step NAME SECONDS COMMAND...: runs, with all output in the log; leaves it in $work/step too.
step() {
  local name=$1 most=$2 begun status
  shift 2
  begun=$(date +%s)
  printf '\n===== %s: %s\n' "$name" "$*" >>"$log"
  limited "$most" "$@" >"$work/step" 2>&1
  status=$?
  cat "$work/step" >>"$log"
  printf '===== %s: exit status %s\n' "$name" "$status" >>"$log"
  took=$(($(date +%s) - begun))
  return "$status"
}

# ---- the machine
if wanted machine; then
  step nvidia-smi 30 nvidia-smi --query-gpu=index,name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max,uuid --format=csv
  status=$?
  cp "$work/step" "$out/nvidia-smi.csv"
  note nvidia-smi "$status" "$took" "$(tail -n 1 "$work/step" | cut -c1-80)"
fi

# ---- tests on the real driver
devices=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
tests() {
  if [ -f "$bundle/manifest.json" ]; then
    python3 -c '
import json, sys
for file in json.load(open(sys.argv[1]))["files"]:
    if file["kind"] == "test": print(file["name"])' "$bundle/manifest.json"
  else
    (cd "$bundle" && ls tests/* 2>/dev/null; ls -- *--* 2>/dev/null)
  fi | grep -v -e '--examples$' # A step of their own.
}
if wanted tests; then
  : >"$work/tests"
  : >"$work/left-out"
  for name in $(tests); do
    # Tests that need two devices have binaries of their own.
    if [[ $name == *--peers* ]] && [ "$devices" -lt 2 ]; then
      reason="needs 2 devices, this machine has $devices"
      printf '%s\t%s\n' "$name" "$reason" >>"$work/left-out"
      note "test $name" 0 0 "left out: $reason"
      continue
    fi
    # All tests of a program share one context. They go one after the other: some test the driver's own semantics, some hold
    # work back by a host function, next to which the driver runs no other and may not allocate, and each checks at its end
    # that nothing of the process's is alive that was not before.
    TRANSLOAD_TEST_DRIVER=real step "test $name" 240 "$bundle/$name" --show-output --test-threads=1
    status=$?
    python3 - "$name" "$status" "$took" "$work/step" >>"$work/tests" <<'P'
import json, re, sys
name, status, seconds, path = sys.argv[1:]
text = open(path, errors="replace").read()
# What each test left out, each reason once.
skips = set()
test = None
for line in text.splitlines():
    block, skip = re.match(r"---- (\S+) stdout ----$", line), re.match(r"skipped: ?(.*)", line)
    if block: test = block[1]
    if skip: skips.add((test, skip[1]))
skipped = {test for test, _ in skips}
found = re.findall(r"^test result: (\w+)\. (\d+) passed; (\d+) failed; (\d+) ignored", text, re.M)
passed, failed, ignored = (sum(int(line[at]) for line in found) for at in (1, 2, 3))
print(json.dumps({
    "name": name, "status": int(status), "finished": bool(found), "seconds": int(seconds),
    "executed": max(0, passed + failed - len(skipped)), "passed": max(0, passed - len(skipped)),
    "skipped": len(skipped), "failed": failed, "ignored": ignored,
    "skip_reasons": sorted(reason for _, reason in skips), "failures": sorted(set(re.findall(r"^test (\S+) \.\.\. FAILED$", text, re.M))),
}))
P
    # What did not run shows nothing, unless more devices would have been needed than there are, the software driver, an adapter of
    # OpenGL beside Vulkan, or memory of a GPU that is the host's, too.
    said=$(tail -n 1 "$work/tests" | python3 -c '
import json, re, sys
t, devices = json.loads(sys.stdin.read()), int(sys.argv[1])
needs = lambda reason: re.match(r"needs (?:(\d+) devices|(?:the software driver|a user who may not read everything)$)|.*no adapter of OpenGL can be used|no adapters of both Vulkan and OpenGL$|wgpu:\d+ has no mapped memory", reason)
is_excused = lambda needed: needed and (needed[1] is None or int(needed[1]) > devices)
excused = [reason for reason in t["skip_reasons"] if is_excused(needs(reason))]
faults = []
if not t["finished"]: faults.append("not finished")
if t["ignored"]: faults.append("%d ignored" % t["ignored"])
if len(excused) < len(t["skip_reasons"]): faults.append("skipped: " + "; ".join(sorted(set(t["skip_reasons"]) - set(excused))))
if not t["executed"] and not t["skipped"]: faults.append("nothing executed")
counts = "%d executed, %d skipped, %d failed" % (t["executed"], t["skipped"], t["failed"])
print("; ".join(["NO EVIDENCE" if faults else "", counts] + faults).lstrip("; "))' "$devices")
    [[ $said == "NO EVIDENCE"* ]] && [ "$status" -eq 0 ] && status=74
    note "test $name" "$status" "$took" "$said"
  done
  # The form that `cargo xtask record --tests` reads.
  python3 - "$work/tests" "$work/left-out" "$devices" >"$out/tests.json" <<'P'
import json, sys
tests = [json.loads(line) for line in open(sys.argv[1])]
left_out = [dict(zip(("name", "reason"), line.rstrip("\n").split("\t"))) for line in open(sys.argv[2])]
total = {key: sum(test[key] for test in tests) for key in ("executed", "skipped", "failed", "ignored")}
total["unfinished"] = [test["name"] for test in tests if not test["finished"]]
run = {"driver": "real", "devices": int(sys.argv[3]), "total": total, "binaries": tests, "left_out": left_out}
json.dump(run, sys.stdout, indent=1)
P
  [ -s "$work/tests" ] || note tests 1 0 "the bundle has no tests"
fi

# ---- the documentation's examples, as a user starts them
if wanted examples; then
  examples=$("$bundle/transload--examples" --list | sed 's/: test$//')
  [ -n "$examples" ] || note examples 74 0 "the bundle has no examples"
  for name in $examples; do
    step "example $name" 60 "$bundle/transload--examples" --run "$name"
    status=$?
    # What was simulated shows nothing, nor does what left a part out.
    grep -qi simulated "$work/step" && status=70
    grep -q '^skipped:' "$work/step" && [ "$status" -eq 0 ] && status=74
    note "example $name" "$status" "$took" "$(grep -m 1 -e '^Error' -e '^skipped:' "$work/step" || tail -n 1 "$work/step")"
  done
fi

# ---- the random tests, many times as long and with other seeds; only where it is asked for by name
if [[ " ${STEPS:-} " == *" soak "* ]]; then
  seed=${SEED:-$(date +%s)}
  # soak NAME ROUNDS COMMAND...: one program.
  soak() {
    local name=$1 rounds=$2 status text
    shift 2
    TRANSLOAD_TEST_DRIVER=real TRANSLOAD_TEST_ROUNDS=$rounds TRANSLOAD_SIM_SEED=$seed step "$name" 280 "$@" --show-output --test-threads=1
    status=$?
    # A filter that matches nothing, or a test that is skipped, is no evidence.
    text=$(grep -o 'test result: .*' "$work/step" | cut -c1-60)
    [[ $text == *" 0 passed"* || -z $text ]] && [ "$status" -eq 0 ] && status=74
    grep -q '^skipped:' "$work/step" && [ "$status" -eq 0 ] && status=74
    note "$name" "$status" "$took" "$rounds times as long as usual, seed $seed; $text; $(grep -m 1 '^soak: .* operations in' "$work/step")"
  }
  soak "soak streams" "${ROUNDS:-10}" "$bundle/transload-streams--it" random whatever_the_pattern
  soak "soak" "${SOAK_ROUNDS:-250}" "$bundle/transload--soak"
fi

# ---- the main job, twice
if wanted bench; then
  for run in 1 2; do
    # Results of an earlier run must not be mistaken for this one's.
    rm -f "$out/bench-$run.json"
    # shellcheck disable=SC2086 # Several words.
    step "bench $run" 300 "$bundle/transload-bench" ${BENCH_ARGUMENTS:---only cpu,cuda,streams,memory} --json "$out/bench-$run.json"
    status=$?
    text=$(grep -E '^[0-9]+ rows,|^goals missed' "$work/step" | tr '\n' ';')
    # A machine whose driver is not found must not pass for a measured one.
    if grep -q '"simulated": true' "$out/bench-$run.json" 2>/dev/null; then
      status=70
      text="SIMULATED: $text"
    fi
    note "bench $run" "$status" "$took" "$text"
  done
fi

# ---- a real file
if wanted copy; then
  mkdir -p "$data"
  head -c "${COPY_BYTES:-1073741824}" /dev/urandom >"$data/file"
  # Progress and messages go to the log, the result to a file of its own.
  step copy 90 bash -c '"$1" copy "$2" --to cuda:0 --json >"$3"' copy "$bundle/transload" "$data/file" "$out/copy.json"
  status=$?
  tee -a "$log" <"$out/copy.json" >"$work/step"
  note copy "$status" "$took" "$(tr -s ' \n' ' ' <"$work/step" | cut -c1-80)"
  rm -rf "$data"
fi

# ---- a memory checker, and faults that it must find
if wanted sanitizer; then
  for fault in none kernel copy segment; do
    step "sanitizer $fault" 90 compute-sanitizer --tool memcheck "$bundle/transload-planted-fault" --fault "$fault"
    status=$?
    summary=$(grep -o 'ERROR SUMMARY: [0-9]* error' "$work/step" | tail -n 1)
    errors=$(printf '%s' "$summary" | tr -cd 0-9)
    # How many parameters a kernel has is found by asking for one too many: a refusal that the checker counts.
    asked=$(grep -c 'Program hit .* on CUDA API call to cuFuncGetParamInfo' "$work/step")
    [ -n "$errors" ] && errors=$((errors - asked))
    if [ -z "$errors" ]; then
      status=71 summary="the checker gave no summary"
    elif [ "$fault" = none ]; then
      [ "$errors" -ne 0 ] && status=72
    else
      # The program may well fail: what counts is that the checker found why.
      status=$([ "$errors" -gt 0 ] && echo 0 || echo 73)
    fi
    found=$(grep -E 'Invalid|out of bounds|Program hit' "$work/step" | grep -v -m 1 cuFuncGetParamInfo | sed 's/^=* *//' | cut -c1-60)
    note "sanitizer $fault" "$status" "$took" "$summary, $asked of them asked for; $found"
  done
fi

# ---- every test under the memory checker. What a test asks the driver to refuse is meant so: only accesses are counted. The
# programs run at the same time, since the checker makes them several times as slow and nothing here is measured.
if wanted sanitizer; then
  checked=()
  for name in $(tests); do
    [[ $name == *--peers* ]] && [ "$devices" -lt 2 ] && continue
    checked+=("$name")
    at=$work/checked-$(basename "$name")
    (
      begun=$(date +%s)
      TRANSLOAD_TEST_DRIVER=real limited 400 compute-sanitizer --tool memcheck --report-api-errors no --log-file "$at.checker" \
        "$bundle/$name" --show-output --test-threads=1 >"$at.output" 2>&1
      printf '%s\t%s\n' "$?" $(($(date +%s) - begun)) >"$at.status"
    ) &
  done
  wait
  for name in "${checked[@]}"; do
    at=$work/checked-$(basename "$name")
    { printf '\n===== sanitizer, %s\n' "$name"; cat "$at.output" "$at.checker"; } >>"$log" 2>&1
    IFS=$'\t' read -r status took <"$at.status"
    summary=$(grep -o 'ERROR SUMMARY: [0-9]* error' "$at.checker" | tail -n 1)
    errors=$(printf '%s' "$summary" | tr -cd 0-9)
    [ -z "$errors" ] && status=71 summary="the checker gave no summary"
    [ "${errors:-0}" -ne 0 ] && status=72
    passed=$(grep -c '^test .* \.\.\. ok$' "$at.output")
    note "sanitizer, $name" "$status" "$took" "$summary; $passed tests, $(grep -c '^skipped:' "$at.output") of them skipped"
  done
fi

# ---- faults in the use of our own allocator, which no checker of memory can see
if wanted sanitizer; then
  step "own check" 60 "$bundle/transload-planted-fault" --fault free
  status=$?
  found=$(grep -m 1 'caught by our own check' "$work/step")
  [ "$status" -eq 0 ] && [ -z "$found" ] && status=73
  note "own check" "$status" "$took" "$found"
fi

# ---- PyTorch in one process: their memory, streams and events here, ours there, without a copy
wanted beside || wanted pytorch || wanted load && : >"$out/pytorch.json"
if wanted beside; then
  for name in beside dlpack adopt; do
    step "pytorch $name" 120 python3 "$here/pytorch_$name.py" "$bundle/libtransload_probe.so"
    status=$?
    grep '^{' "$work/step" >>"$out/pytorch.json"
    note "pytorch $name" "$status" "$took" "$(tail -n 1 "$work/step" | cut -c1-120)"
  done
fi

# ---- PyTorch beside us: rows
if wanted pytorch; then
  step "pytorch copies" 120 python3 "$here/pytorch_copies.py"
  status=$?
  grep '^{' "$work/step" >>"$out/pytorch.json"
  note "pytorch copies" "$status" "$took" "$(grep -c '"id"' "$work/step") rows"
  step "pytorch streams" 60 python3 "$here/pytorch_streams.py"
  status=$?
  grep '^{' "$work/step" >>"$out/pytorch.json"
  note "pytorch streams" "$status" "$took" "$(grep -c '"id"' "$work/step") rows"
  step "pytorch memory" 60 python3 "$here/pytorch_memory.py"
  status=$?
  grep '^{' "$work/step" >>"$out/pytorch.json"
  note "pytorch memory" "$status" "$took" "$(grep -c '"id"' "$work/step") rows"
fi

# ---- a model file, beside PyTorch's own loading of it
if wanted load; then
  step load 120 python3 "$here/pytorch_load.py" "$bundle/transload" "${LOAD_MEGABYTES:-400}"
  status=$?
  grep '^{' "$work/step" >>"$out/pytorch.json"
  note load "$status" "$took" "$(tail -n 1 "$work/step" | python3 -c '
import json, sys
row = json.loads(sys.stdin.read())
print("%d tensors, transload %.2f GB/s, PyTorch %.2f GB/s, verified %s" % (row["tensors"],
      row["transload_moving_bytes_per_second"] / 1e9, row["pytorch_bytes_per_second"] / 1e9, row["verified"]))' 2>/dev/null)"
fi

python3 - "$work/steps" "$failed" >"$out/steps.json" <<'P'
import json, sys
steps = []
for line in open(sys.argv[1]):
    name, status, seconds, text = line.rstrip("\n").split("\t", 3)
    steps.append({"name": name, "status": int(status), "seconds": int(seconds), "text": text})
json.dump({"failed": sys.argv[2] != "0", "steps": steps}, sys.stdout, indent=1)
P
# Results stay short enough to send: of a longer file the end is kept.
for file in "$out"/*; do
  if [ "$(stat -c %s "$file")" -gt 16000000 ]; then
    tail -c 15000000 "$file" >"$work/cut" && mv "$work/cut" "$file"
  fi
done
exit "$failed"
