#!/usr/bin/env bash
# run.sh OUT [VARIANT]: everything that a GPU can be asked in a few minutes, from the folder that make gpu-bundle made; no Go is needed.
# VARIANT is cuda, or sim to try the bundle where there is no GPU. What comes first counts most: the run is of use when it is cut short.
# OUT gets the certificate (verify ops --replay judges it on any machine), logs, and summary.txt with one line for each part.
set -u
out=${1:?run.sh OUT [cuda|sim]} variant=${2:-cuda}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out" && out=$(cd "$out" && pwd) && : > "$out/summary.txt" || exit 3
worst=0

part() { # NAME COMMAND…
  local name=$1 began=$SECONDS code=0
  shift
  echo "== $name"
  "$@" > "$out/$name.log" 2>&1 || code=$?
  tail -n 3 "$out/$name.log"
  echo "$name: exit $code, $((SECONDS - began)) s" | tee -a "$out/summary.txt"
  [ "$code" -eq 0 ] || worst=$code
  return "$code"
}

if command -v nvidia-smi > /dev/null; then nvidia-smi > "$out/nvidia-smi.txt" 2>&1; fi
cases=60
[ "$variant" = cuda ] || cases=3
# Without a GPU nothing else can say anything: one sentence, and exit 3.
"$here/verify" ops --variant "$variant" --run '^f32.Move$' --cases 1 > "$out/probe.log" 2>&1
code=$?
if [ "$code" -eq 3 ]; then
  cat "$out/probe.log"
  echo "not run: $(tail -n 1 "$out/probe.log")" >> "$out/summary.txt"
  exit 3
fi
part ops "$here/verify" ops --variant "$variant" --cases "$cases" --record "$out/$variant.certificate"
part replay "$here/verify" ops --replay "$out/$variant.certificate"
if [ "$variant" = cuda ]; then
  part suite env VERIFY_REQUIRE=cuda "$here/cuda.test" -test.run OnGPU -test.v
fi
cd "$out" || exit 3
for model in tiny tiny-gptj; do
  rm -rf "lockstep-$model" # of a run before
  part "lockstep-$model" "$here/train" sft --policy "$variant" --lockstep model.name=$model lora.r=2 lora.targets=q_proj,v_proj sft.steps=3 sft.batch_size=2 sft.eval_samples=0 \
    training.log_interval=1 training.output_dir="lockstep-$model"
done
exit "$worst"
