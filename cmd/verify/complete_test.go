package main

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"weak"

	"github.com/stretchr/testify/require"
)

// A word that is nearly one of those that a flag takes is refused with that one, and a flag that would have no effect is refused.
func TestNearestWords(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, extract("demo/clean", filepath.Join(dir, "run")))
	vram := "vram --model gpt2 --batch 1 --seq 8 "
	for _, c := range []struct{ args, says string }{
		{"dum", `did you mean "dump"?`},
		{"dump run --profile trl-grop@1.16", `did you mean "trl-grpo@1.16"?`},
		{"dump run --set adv.dof=1", `did you mean "adv.ddof"?`},
		{"dump run --select advantage/gruop", `did you mean "advantage/group"?`},
		{"dump run --format jsn", `did you mean "json"?`},
		{"dump run --fail-on wran", `did you mean "warn"?`},
		{"dump run --fomat json", "did you mean --format?"},
		{"explain ADV-DOFF", `did you mean "ADV-DDOF"?`},
		{"explain advantage/gruop", `did you mean "advantage/group"?`},
		{"profiles trl-gpro@1.16", `did you mean "trl-grpo@1.16"?`},
		{"export tlr", `did you mean "trl"?`},
		{"faults --suite dmup", `did you mean "dump"?`},
		{"faults --profile trl-grpo@1.16", "--profile is that of --dump"},
		{"log x --kind verll", `did you mean "verl"?`},
		{"ops --variant avx512vni", `did you mean "avx512vnni"?`},
		{"ops --run f32.Softmx", `did you mean "f32.Softmax"?`},
		{"checkpoint x --needs valuehead", `did you mean "value-head"?`},
		{"checkpoint --plan gpt-j-6", `did you mean "gpt-j-6b"?`},
		{"golden --entry polic_loss", `did you mean "policy_loss/`},
		{"projection --basis x --kind falt", `did you mean "flat"?`},
		{"shard-plan --shards 2 --engine slrum -- dump x", `did you mean "slurm"?`},
		{"vram --model gptj-6b --batch 1 --seq 8", `did you mean "gpt-j-6b"?`},
		{vram + "--stack plumblin", `did you mean "plumbline"?`},
		{vram + "--optimizer adam8bit", `did you mean "adamw8bit"?`},
		{vram + "--dtype float61", `did you mean "float16"?`},
		{vram + "--attention spda", `did you mean "sdpa"?`},
		{vram + "--reference coppy", `did you mean "copy"?`},
		{vram + "--stack plumbline --policy acel", `did you mean "accel"?`},
	} {
		_, errs, code := verify(t, dir, strings.Fields(c.args)...)
		require.Equal(t, 2, code, "%s: %s", c.args, errs)
		require.Contains(t, errs, c.says, c.args)
	}
}

// Nothing holds the commands of a run that has ended: a program that runs many, as the tests of mutated files do, does not grow.
func TestCommandsAreFreed(t *testing.T) {
	root := weak.Make(newRoot())
	for range 10 {
		if runtime.GC(); root.Value() == nil {
			return
		}
	}
	t.Fatal("the commands are still held after ten collections")
}
