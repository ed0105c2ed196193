//go:build unix

package main

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/internal/format/safetensors"
	"plumbline/verify/check"
)

// badRun is a run that the command must answer with an exit code and a line that says what is wrong.
type badRun struct {
	name string
	make func(t testing.TB, dir string)
	args string
	code int
	says string
	not  string // must not be said, "" for nothing
}

func (c *badRun) judge(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	run := filepath.Join(dir, "run")
	require.NoError(t, os.Mkdir(run, 0o777))
	c.make(t, run)
	args := append([]string{"dump", "run", "-v"}, strings.Fields(c.args)...)
	h := hostile{code: c.code, says: c.says}
	if c.code == 0 {
		h.code = accepted
	}
	most := limits{took: patience * 4, peak: math.MaxInt64, text: maxText}
	o := within(t, dir, most.took, args...)
	require.Empty(t, h.faults(o, "human", most), "%s%s", o.stdout, o.stderr)
	if c.not != "" {
		require.NotContains(t, o.stdout+o.stderr, c.not)
	}
	if c.code == check.ExitMalformed || c.code == check.ExitUsage || c.code == check.ExitNothing && o.stdout == "" {
		require.Empty(t, o.stdout)
		require.Equal(t, 1, strings.Count(o.stderr, "\n"), "one line: %s", o.stderr)
	}
	forms := []string{"json", "junit"}
	switch {
	case testing.Short():
		forms = nil
	case c.code == check.ExitFail: // what failed is explained anew for each
		forms = forms[:1]
	}
	for _, form := range forms {
		require.Empty(t, h.faults(within(t, dir, most.took, append(args, "--format", form)...), form, most))
	}
}

func set(key string, value any) func(d *dumpText) {
	return func(d *dumpText) { d.meta[key] = value }
}

func option(name string, value any) func(d *dumpText) {
	return func(d *dumpText) { d.options()[name] = value }
}

func tensor(name string, shape []int, x []float64) func(d *dumpText) {
	return func(d *dumpText) {
		d.tensors[name] = &safetensors.Tensor{Name: name, DType: format.F32, Shape: shape, Data: x}
	}
}

// textMeta is one file whose metadata are this text.
func textMeta(text string) func(t testing.TB, dir string) {
	return func(t testing.TB, dir string) {
		readDump(t, filepath.Join(trlRuns, "clean", "grpo", "step_0001_mb_0.safetensors")).writeText(t, filepath.Join(dir, "a.safetensors"), text)
	}
}

// firstRank is the files of rank 0 of a run of two.
func firstRank(run string) func(t testing.TB, dir string) {
	return func(t testing.TB, dir string) {
		runOf(t, filepath.Join(goldenRuns, run), dir, func(*dumpText) {})
		others, err := filepath.Glob(filepath.Join(dir, "*_rank_1_*"))
		require.NoError(t, err)
		require.NotEmpty(t, others)
		for _, f := range others {
			require.NoError(t, os.Remove(f))
		}
	}
}

func rawFile(name string, data []byte) func(t testing.TB, dir string) {
	return func(t testing.TB, dir string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o666))
	}
}

// Files that are refused: exit code 4, one line, nothing on stdout; or 5, where there is nothing to look at.
func TestDumpRefused(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join(trlRuns, "clean", "grpo", "step_0001_mb_0.safetensors"))
	require.NoError(t, err)
	none := func(testing.TB, string) {}
	for _, c := range []badRun{
		{name: "an empty folder", make: none, code: 5, says: "no .safetensors and no .npz"},
		{name: "a folder without dumps", make: rawFile("notes.txt", []byte("none")), code: 5, says: "no .safetensors and no .npz"},
		{name: "a folder of folders", make: func(t testing.TB, dir string) { cleanRun(func(*dumpText) {})(t, filepath.Join(dir, "deeper")) }, code: 5, says: "no .safetensors and no .npz"},

		{name: "an empty file", make: rawFile("a.safetensors", nil), code: 4, says: "a.safetensors"},
		{name: "half a file", make: rawFile("a.safetensors", whole[:len(whole)/2]), code: 4, says: "a.safetensors"},
		{name: "half a header", make: rawFile("a.safetensors", whole[:100]), code: 4, says: "a.safetensors"},
		{name: "text", make: rawFile("a.safetensors", []byte("hello, world, this is text")), code: 4, says: "a.safetensors"},
		{name: "no zip", make: rawFile("a.npz", []byte("hello, world")), code: 4, says: "a.npz"},
		{name: "a FIFO", make: func(t testing.TB, dir string) {
			require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "a.safetensors"), 0o666))
		}, code: 4, says: "a.safetensors"},
		{name: "a link out of the folder", make: func(t testing.TB, dir string) {
			require.NoError(t, os.Symlink("/etc/hostname", filepath.Join(dir, "a.safetensors")))
		}, code: 4, says: "a.safetensors"},

		{name: "no metadata", make: func(t testing.TB, dir string) {
			require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "a.safetensors"), nil, []safetensors.Tensor{{Name: "response_mask", DType: format.Bool, Shape: []int{1, 1}, Data: []float64{1}}}))
		}, code: 4, says: "no metadata"},
		{name: "metadata that are no JSON", make: textMeta("{"), code: 4, says: "a.safetensors"},
		{name: "metadata that are a list", make: textMeta("[1]"), code: 4, says: "a.safetensors"},
		{name: "a key twice", make: textMeta(`{"schema":1,"step":1,"step":2}`), code: 4, says: "step"},
		{name: "NaN in the metadata", make: textMeta(`{"schema":1,"scalars":{"loss":NaN}}`), code: 4, says: "written as null"},
		{name: "no schema", make: textMeta(`{"step":1}`), code: 4, says: "schema"},
		{name: "another schema", make: oneFile(set("schema", 3)), code: 4, says: "is 3, want"},
		{name: "a schema that is text", make: oneFile(set("schema", "1")), code: 4, says: "schema"},
		{name: "a step below 0", make: oneFile(set("step", -1)), code: 4, says: "step"},
		{name: "a rank beyond the world", make: oneFile(set("rank", 3)), code: 4, says: "world_size is 1"},
		{name: "a micro-batch beyond the last", make: oneFile(set("micro_batch", 2)), code: 4, says: "micro_batches is 2"},
		{name: "another alignment", make: oneFile(set("align", "left")), code: 4, says: "response, shifted or unshifted"},
		{name: "another scope", make: oneFile(option("scalars_scope", "epoch")), code: 4, says: "optimizer_step or micro_batch"},
		{name: "an unknown profile", make: oneFile(set("profile", "trl-gpro@1.16")), code: 4, says: `did you mean "trl-grpo`},
		{name: "JSON beside the file that says something else", make: func(t testing.TB, dir string) {
			oneFile(func(*dumpText) {})(t, dir)
			rawFile("a.json", []byte(`{"schema":1,"step":2}`))(t, dir)
		}, code: 4, says: "differ: step is 1 and 2"},

		{name: "an unknown neutral option", make: oneFile(option("adv.dof", 1)), code: 4, says: `did you mean "adv.ddof"`},
		{name: "an illegal value", make: oneFile(option("adv.ddof", 7)), code: 4, says: "adv.ddof"},
		{name: "an illegal word", make: oneFile(option("agg.kind", "tokens")), code: 4, says: `did you mean "token"`},
		{name: "an illegal value of a native option", make: oneFile(option("loss_type", 3)), code: 4, says: "loss_type"},
		{name: "one option as two", make: oneFile(func(d *dumpText) {
			d.options()["clip.low"], d.options()["clip"] = 0.2, map[string]any{"low": 0.3}
		}), code: 4, says: "clip.low is given twice"},
		{name: "an option at two places", make: oneFile(func(d *dumpText) { d.meta["masked_fill"] = 1 }), code: 4, says: "masked_fill"},
		{name: "a step of two opinions", make: func(t testing.TB, dir string) {
			n := 0.0
			cleanRun(func(d *dumpText) { n++; d.options()["beta"] = n })(t, dir)
		}, code: 4, says: "key options, beta"},

		{name: "two files for one place", make: func(t testing.TB, dir string) {
			cleanRun(set("micro_batch", 0))(t, dir)
		}, code: 4, says: "want one file for each"},

		{name: "no mask", make: oneFile(func(d *dumpText) { d.drop("response_mask") }), code: 4, says: "no tensor response_mask"},
		{name: "a mask of halves", make: oneFile(func(d *dumpText) {
			d.tensors["response_mask"].DType = format.F32
			d.tensors["response_mask"].Data[3] = 0.5
		}), code: 4, says: "found 0.5, want 0 or 1"},
		{name: "a mask of twos", make: oneFile(func(d *dumpText) {
			d.tensors["response_mask"].DType = format.I64
			d.tensors["response_mask"].Data[0] = 2
		}), code: 4, says: "found 2, want 0 or 1"},
		{name: "a NaN in the mask", make: oneFile(func(d *dumpText) {
			d.tensors["response_mask"].DType = format.F32
			d.tensors["response_mask"].Data[0] = math.NaN()
		}), code: 4, says: "want 0 or 1"},
		{name: "a mask of one dimension", make: oneFile(tensor("response_mask", []int{4}, []float64{1, 1, 1, 1})), code: 4, says: "want [B, T]"},
		{name: "a mask of no rows", make: oneFile(tensor("response_mask", []int{0, 4}, nil)), code: 4, says: "no rows"},
		{name: "another number of columns", make: oneFile(tensor("logp_new", []int{4, 39}, make([]float64, 156))), code: 4, says: "logp_new"},
		{name: "another number of columns, the other tensor", make: oneFile(tensor("logp_new", []int{4, 39}, make([]float64, 156))), code: 4, says: "response_mask"},
		{name: "another number of rows", make: oneFile(tensor("scores", []int{5}, make([]float64, 5))), code: 4, says: "scores"},
		{name: "three dimensions", make: oneFile(tensor("kl", []int{4, 40, 1}, make([]float64, 160))), code: 4, says: "kl"},
		{name: "ids that are none", make: oneFile(func(d *dumpText) {
			d.tensors["response_ids"].DType = format.F32
			d.tensors["response_ids"].Data[2] = 1.5
		}), code: 4, says: "response_ids"},
		{name: "the last of many files is broken", make: func(t testing.TB, dir string) {
			cleanRun(func(*dumpText) {})(t, dir)
			rawFile("z.safetensors", whole[:len(whole)-1])(t, dir)
		}, code: 4, says: "z.safetensors"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.judge(t)
		})
	}
}

// Files that are read, and the trouble is in what they say: what cannot be decided is said to be undecided and never wrong.
func TestDumpTrouble(t *testing.T) {
	without := func(name string) func(t testing.TB, dir string) {
		return func(t testing.TB, dir string) {
			cleanRun(func(*dumpText) {})(t, dir)
			require.NoError(t, os.Remove(filepath.Join(dir, name)))
		}
	}
	strange := "x\x1b]0;owned\x07\u202e\u2028y"
	for i, c := range []badRun{
		{name: "a micro-batch is missing", make: without("step_0002_mb_1.safetensors"), args: "--profile " + trlProfile, code: 6, says: "missing: micro-batch 1 of 2 of rank 0: no file for step 2", not: "FAIL"},
		{name: "a micro-batch is missing, no profile", make: without("step_0002_mb_1.safetensors"), code: 6, says: "UNDETERMINED", not: "FAIL"},
		{name: "a rank is missing, and every file divides by its own tokens", make: cleanRun(set("world_size", 2)), args: "--profile " + trlProfile, code: 6, says: "missing: rank 1 of 2", not: "FAIL"},
		{name: "a rank is missing, and groups and denominators span both", make: firstRank("trl-grpo/clean/dapo_two_ranks"), args: "--profile " + trlProfile, code: 6, says: "missing: rank 1 of 2", not: "FAIL"},
		{name: "a rank of verl is missing", make: firstRank("verl/clean/grpo_two_ranks"), args: "--profile verl-grpo@0.9", code: 6, says: "the files missing from the step (rank 1 of 2", not: "FAIL"},
		{name: "a rank of verl is missing, no profile", make: firstRank("verl/clean/grpo_two_ranks"), code: 6, says: "missing: rank 1 of 2", not: "FAIL"},
		{name: "a step is missing", make: func(t testing.TB, dir string) {
			without("step_0002_mb_1.safetensors")(t, dir)
			require.NoError(t, os.Remove(filepath.Join(dir, "step_0002_mb_0.safetensors")))
		}, args: "--profile " + trlProfile, code: 0, says: "2 steps"},

		{name: "nothing but a mask", make: oneFile(func(d *dumpText) {
			d.keep("response_mask")
			d.meta["scalars"] = map[string]any{}
		}), args: "--select kl --select advantage", code: 6, says: "nothing it applies to"},
		{name: "nothing that a check looks at", make: oneFile(func(d *dumpText) {
			d.keep("response_mask")
			d.meta["scalars"], d.meta["options"] = map[string]any{}, map[string]any{}
			d.tensors["mine"] = &safetensors.Tensor{Name: "mine", DType: format.F32, Shape: []int{2}, Data: []float64{1, 2}}
		}), args: "--ignore masks --ignore input", code: 5, says: "nothing was checked"},

		{name: "options that contradict each other: the neutral one is stronger", make: cleanRun(option("kl.beta", 0.5)), args: "--profile " + trlProfile, code: 1, says: "kl.beta"},
		{name: "an option that nobody knows", make: cleanRun(option("my_own_option", true)), args: "--profile " + trlProfile, code: 6, says: "options of the dump that nobody knows: my_own_option (nearest: "},
		{name: "a version nobody has", make: cleanRun(set("version", "9.9.9")), args: "--profile " + trlProfile, code: 0, says: `declared is "9.9.9"`},
		{name: "a framework nobody knows", make: cleanRun(set("framework", "homemade")), args: "--profile " + trlProfile, code: 0, says: `options of "homemade grpo" are read by the names of TRL`},

		{name: "names that drive a terminal", make: cleanRun(func(d *dumpText) {
			d.options()[strange] = strange
			d.options()["eos.rule"+strange] = nil
			delete(d.options(), "eos.rule"+strange)
			d.meta["version"] = strange
			d.meta[strange] = 1
		}), args: "--profile " + trlProfile, code: 0, says: "x�"},
		{name: "a framework that drives a terminal", make: cleanRun(set("framework", strange)), args: "--profile " + trlProfile, code: 0, says: "are read by the names of"},
		{name: "a profile that drives a terminal", make: cleanRun(set("profile", strange)), code: 4, says: "profile"},
		{name: "an option that drives a terminal", make: cleanRun(option("loss_type", strange)), code: 4, says: "loss_type"},
		{name: "a tensor that drives a terminal", make: cleanRun(func(d *dumpText) {
			d.tensors["z\u202e"] = &safetensors.Tensor{Name: "z\u202e", DType: format.F32, Shape: []int{1}, Data: []float64{1}}
		}), args: "--profile " + trlProfile, code: 0, says: "unknown tensors are ignored"},

		{name: "a loss that is NaN", make: cleanRun(func(d *dumpText) { d.tensors["loss"].Data[0] = math.NaN() }), args: "--profile " + trlProfile, code: 1, says: "aggregate/"},
		{name: "logged numbers that are null", make: cleanRun(func(d *dumpText) { d.meta["scalars"].(map[string]any)["loss"] = nil }), args: "--profile " + trlProfile, code: 1, says: "scalars/loss"},
		{name: "infinities everywhere", make: cleanRun(func(d *dumpText) {
			for _, name := range []string{"logp_new", "logp_old", "kl", "token_loss", "advantages"} {
				for i := range d.tensors[name].Data {
					d.tensors[name].Data[i] = math.Inf(1 - 2*(i%2))
				}
			}
		}), args: "--profile " + trlProfile, code: 1, says: "masks/finite"},
		{name: "an empty mask", make: cleanRun(func(d *dumpText) { clear(d.tensors["response_mask"].Data) }), args: "--profile " + trlProfile, code: 1, says: "FAIL"},
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

// A dump that the writer of this module writes, of a few numbers that can be followed by hand: one row of two tokens, the ratio
// 1, no KL, advantage 2: token losses of −2, and their mean.
func TestDumpByHand(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, loss float64, options ...dumpfile.Option) {
		token := func(name string, x ...float64) *dumpfile.Tensor {
			return &dumpfile.Tensor{Name: name, Shape: []int{1, 3}, Type: format.F32, Data: x}
		}
		require.NoError(t, dumpfile.WriteFile(filepath.Join(dir, name), dumpfile.Meta{Algorithm: "grpo", Options: options},
			dumpfile.NewMask("response_mask", 1, 3, []bool{true, true, false}), token("logp_new", -1, -2, 0), token("logp_old", -1, -2, 0), token("token_loss", -2, -2, 0),
			&dumpfile.Tensor{Name: "advantages", Shape: []int{1}, Type: format.F32, Data: []float64{2}},
			&dumpfile.Tensor{Name: "loss", Shape: []int{}, Type: format.F32, Data: []float64{loss}}))
	}
	declared := []dumpfile.Option{{Name: "agg.kind", Value: "seq_mean_token_mean"}, {Name: "agg.denominator", Value: "micro"}, {Name: "agg.div_ga", Value: false}, {Name: "kl.beta", Value: 0.0}}
	write("right.safetensors", -2, declared...)
	stdout, stderr, code := verify(t, dir, "dump", "right.safetensors", "--profile", trlProfile, "--ignore", "advantage")
	require.Zero(t, code, "%s%s", stdout, stderr)
	write("wrong.safetensors", -4.0/3, declared...) // the mean over the padded width
	f := dumpJSON(t, dir, "wrong.safetensors", "--profile", trlProfile, "--ignore", "advantage")
	require.Equal(t, 1, f.Exit)
	loss := f.find("aggregate/loss")
	require.Equal(t, "wrong.safetensors  got -1.333333  want -2", loss.Where, "the file as it was named")
	require.Contains(t, loss.Class, "AGG-PAD-DENOMINATOR")
}

// An interrupted run ends with 130, says so, and leaves no half report.
func TestDumpInterrupted(t *testing.T) {
	dir := t.TempDir()
	manySteps(t, filepath.Join(dir, "run"), 150, func(*dumpText) {})
	for _, more := range [][]string{nil, {"--format", "json", "-o", "r.json"}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, binaryPath, append([]string{"dump", "run", "--infer"}, more...)...)
		cmd.Dir = dir
		var errs strings.Builder
		cmd.Stderr = &errs
		require.NoError(t, cmd.Start())
		time.Sleep(400 * time.Millisecond)
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		_ = cmd.Wait()
		cancel()
		require.Equal(t, check.ExitInterrupted, cmd.ProcessState.ExitCode(), errs.String())
		require.Equal(t, "verify: interrupted\n", errs.String())
		left, err := filepath.Glob(filepath.Join(dir, "*r.json*"))
		require.NoError(t, err)
		require.Empty(t, left)
	}
}

// What cannot be written is exit code 3; in JSON an error stands in the report.
func TestDumpOutputThatFails(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		untried(t, "no /dev/full on this system")
	}
	_, stderr, code := verify(t, ".", "dump", filepath.Join(trlRuns, "clean", "grpo"), "--profile", trlProfile, "-o", "/dev/full")
	require.Equal(t, 3, code)
	require.Contains(t, stderr, "no space left")
	stdout, _, code := verify(t, t.TempDir(), "dump", "nowhere", "--format", "json")
	require.Equal(t, 2, code)
	require.True(t, json.Valid([]byte(stdout)))
}
