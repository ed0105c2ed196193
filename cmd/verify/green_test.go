package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format/safetensors"
)

// rename gives a tensor another name.
func rename(from, to string) func(d *dumpText) {
	return func(d *dumpText) {
		x := *d.tensors[from]
		x.Name = to
		delete(d.tensors, from)
		d.tensors[to] = &x
	}
}

// both is two runs in one folder, the second with other steps.
func both(first, second func(d *dumpText)) func(t testing.TB, dir string) {
	return func(t testing.TB, dir string) {
		cleanRun(first)(t, dir)
		files, err := filepath.Glob(filepath.Join(trlRuns, "clean", "grpo", "step_0001*.safetensors"))
		require.NoError(t, err)
		for _, f := range files {
			d := readDump(t, f)
			d.meta["step"] = 9
			second(d)
			d.write(t, filepath.Join(dir, "second_"+filepath.Base(f)))
		}
	}
}

// Nothing is green because little of it was judged: each of these was, once.
func TestNeverGreenByAccident(t *testing.T) {
	same := func(*dumpText) {}
	without := func(names ...string) func(t testing.TB, dir string) {
		return func(t testing.TB, dir string) {
			cleanRun(same)(t, dir)
			for _, name := range names {
				require.NoError(t, os.Remove(filepath.Join(dir, name)))
			}
		}
	}
	masks := cleanRun(func(d *dumpText) {
		d.keep("response_mask", "input_ids", "attention_mask", "response_ids")
		d.meta["scalars"] = map[string]any{}
	})
	profile := "--profile " + trlProfile
	for i, c := range []badRun{
		{name: "the files say trl 1.16.0 grpo, a ddof bug, no profile", make: func(t testing.TB, dir string) {
			runOf(t, goldenRuns+"/trl-grpo/faulty/adv_std_ddof0", dir, same)
		}, code: 1, says: "ADV-DDOF"},
		{name: "only masks, with a profile", make: masks, args: profile, code: 5, says: "nothing was checked"},
		{name: "only masks, no profile", make: masks, code: 5, says: "nothing was checked"},
		{name: "logprobs for logp_new", make: cleanRun(rename("logp_new", "logprobs")), args: profile, code: 6, says: "did you mean logp_new?"},
		{name: "advantage for advantages", make: cleanRun(rename("advantages", "advantage")), args: profile, code: 6, says: "did you mean advantages?"},
		{name: "a letter too many", make: cleanRun(rename("token_loss", "token_losss")), args: profile, code: 6, says: "did you mean token_loss?"},
		{name: "a letter too few", make: cleanRun(rename("dlogp", "dlog")), args: profile, code: 6, says: "did you mean dlogp?"},
		{name: "another case", make: cleanRun(rename("logp_ref", "Logp_Ref")), args: profile, code: 6, says: "did you mean logp_ref?"},
		{name: "a key of the metadata", make: cleanRun(set("micro_batchs", 2)), args: profile, code: 6, says: "did you mean micro_batch"},
		{name: "an unknown option", make: cleanRun(option("frobnicate", 3)), args: profile, code: 6, says: "has none of that name"},
		{name: "a misspelt option", make: cleanRun(option("epsilon_hihg", 0.3)), args: profile, code: 6, says: "did you mean epsilon_high?"},
		{name: "an unknown version of a profile", make: cleanRun(same), args: "--profile trl-grpo@9.9", code: 6, says: "there is no profile trl-grpo@9.9"},
		{name: "an unknown version of a profile in the files", make: cleanRun(set("profile", "trl-grpo@9.9")), code: 6, says: "there is no profile trl-grpo@9.9"},
		{name: "a release between two profiles in the files", make: cleanRun(set("version", "0.15.2")), args: "--select kl", code: 6, says: "declare --profile trl-grpo@0.14 if"},
		{name: "a release before all profiles in the files", make: cleanRun(set("version", "0.9.1")), args: "--select kl", code: 6, says: "a release before the first that a profile is of"},
		{name: "an unknown release in the files", make: cleanRun(set("version", "9.9.9")), args: "--select kl", code: 6, says: "a release that no profile is of"},
		{name: "one rank of four", make: cleanRun(set("world_size", 4)), args: profile, code: 6, says: "ranks 1 to 3 of 4"},
		{name: "a lost micro-batch", make: without("step_0002_mb_1.safetensors"), args: profile, code: 6, says: "micro-batch 1 of 2"},
		{name: "half of every step", make: without("step_0001_mb_1.safetensors", "step_0002_mb_1.safetensors", "step_0003_mb_1.safetensors"), args: profile, code: 6, says: "micro-batch 1 of 2"},
		{name: "mixed frameworks", make: both(same, func(d *dumpText) { d.meta["framework"], d.meta["options"] = "verl", map[string]any{} }), args: profile, code: 1, says: "framework is"},
		{name: "mixed releases", make: both(same, set("version", "1.12.0")), args: profile, code: 6, says: "version is", not: "across/"},
		{name: "mixed releases, said to be one run", make: both(same, set("version", "1.12.0")), args: profile + " --ignore input/one_run", code: 1, says: "REF-IS-POLICY"},
		{name: "mixed algorithms", make: both(same, set("algorithm", "rloo")), args: profile, code: 1, says: "algorithm is"},
		{name: "two runs", make: both(set("run", "a"), set("run", "b")), args: profile, code: 4, says: "files of two runs"},
		{name: "a run that has a name and one that has none", make: both(set("run", "a"), same), args: profile, code: 6, says: "run is"},
		{name: "a profile of another framework", make: cleanRun(same), args: "--profile verl-grpo@0.9 --select advantage", code: 6, says: "the files say trl"},
		{name: "a profile of another framework in the files", make: cleanRun(set("profile", "openrlhf-group@0.11")), args: "--select scalars/reward", code: 6, says: "the files say trl"},
		{name: "a profile of another algorithm", make: cleanRun(same), args: "--profile trl-rloo@1.16 --select scalars/reward", code: 6, says: "trl-rloo@1.16"},
	} {
		if i%cases.Every != 0 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.judge(t)
		})
	}
}

// A clip check with nothing to clip is untested, and what was asked for by name must be tested.
func TestUntestedIsNotPassed(t *testing.T) {
	dir := t.TempDir()
	cleanRun(func(d *dumpText) {
		d.tensors["logp_old"].Data = slices.Clone(d.tensors["logp_new"].Data)
		scalars := d.meta["scalars"].(map[string]any)
		for name := range maps.Clone(scalars) {
			if len(name) > 4 && name[:4] == "clip" {
				scalars[name] = 0.0
			}
		}
	})(t, dir)
	f := dumpJSON(t, dir, ".", "--profile", trlProfile)
	r := f.find("scalars/clip_ratio_high_mean")
	require.NotNil(t, r)
	require.Equal(t, "untested", r.Verdict)
	require.Contains(t, r.Reason, "all ratios are 1")
	f = dumpJSON(t, dir, ".", "--profile", trlProfile, "--require", "scalars/clip_ratio_high_mean", "--select", "scalars/clip_ratio_high_mean")
	require.Equal(t, 6, f.Exit)
}

// What no name is near to is a user's own affair.
func TestOwnTensorsAreNoMistakes(t *testing.T) {
	dir := t.TempDir()
	cleanRun(func(d *dumpText) {
		for _, name := range []string{"hidden_states", "my_debug_tensor", "ratio"} {
			d.tensors[name] = &safetensors.Tensor{Name: name, DType: d.tensors["logp_new"].DType, Shape: []int{1}, Data: []float64{1}}
		}
		d.meta["git_sha"], d.meta["note"] = "abc", "mine"
	})(t, dir)
	stdout, stderr, code := verify(t, dir, "dump", ".", "--profile", trlProfile)
	require.Zero(t, code, "%s%s", stdout, stderr)
}
