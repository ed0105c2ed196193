package golden

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	data "plumbline/golden"
	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/verify/check"
)

// folder writes sections of the embedded set to a new folder, without a manifest.
func folder(t testing.TB, sections ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, s := range sections {
		for _, ext := range []string{".json", ".safetensors"} {
			content, err := data.Data.ReadFile(partOf(t, s) + ext)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, s+ext), content, 0o644))
		}
	}
	return dir
}

// partOf returns the path of an embedded section without its extension.
func partOf(t testing.TB, section string) string {
	t.Helper()
	for _, part := range parts {
		if _, err := fs.Stat(data.Data, part.folder+"/"+section+".json"); err == nil {
			return part.folder + "/" + section
		}
	}
	t.Fatalf("no embedded section %s", section)
	return ""
}

// judgeDir opens and judges a folder.
func judgeDir(dir string) ([]check.Result, error) {
	s, err := Open(context.Background(), dir)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	results, err := Suite.Run(s, check.Selection{})
	return results, errors.Join(err, s.Malformed())
}

// object is a JSON object of a golden file, as a test edits it.
type object = map[string]any

// editEntry changes the entry i of a section's file.
func editEntry(t *testing.T, dir, section string, i int, change func(e object)) {
	t.Helper()
	editFile(t, dir, section, func(f object) { change(f["entries"].([]any)[i].(object)) })
}

func editFile(t *testing.T, dir, section string, change func(f object)) {
	t.Helper()
	path := filepath.Join(dir, section+".json")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var f object
	require.NoError(t, json.Unmarshal(text, &f))
	change(f)
	text, err = json.Marshal(f)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o644))
}

// replace exchanges text in a file, which must be there.
func replace(t *testing.T, path, old, new string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Contains(t, string(text), old)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(text), old, new, 1)), 0o644))
}

// index returns the first entry of an embedded section that fits.
func index(t *testing.T, section string, fits func(*Entry) bool) int {
	t.Helper()
	for i, e := range embedded(t).Sections[section].Entries {
		if fits(e) {
			return i
		}
	}
	t.Fatalf("no such entry in %s", section)
	return 0
}

// Broken and hostile folders end in a finding, or in an error that names file and entry. Nothing panics.
func TestHostileFolders(t *testing.T) {
	in := func(e object, name string) object { return e["inputs"].(object)[name].(object) }
	out := func(e object, name string) object { return e["outputs"].(object)[name].(object) }
	entry := func(section string, i int, change func(e object)) func(*testing.T, string) {
		return func(t *testing.T, dir string) { editEntry(t, dir, section, i, change) }
	}
	groups := index(t, "group_advantages", func(e *Entry) bool { return e.Peer == "trl" })
	vllm := index(t, "policy_loss", func(e *Entry) bool { return e.Options["use_vllm"] == true })
	seq := index(t, "policy_loss", func(e *Entry) bool { return e.In["advantages_seq"] != nil })
	sapo := index(t, "policy_loss", func(e *Entry) bool { return e.Function == "compute_policy_loss_sapo" })
	top := index(t, "policy_loss", func(e *Entry) bool { return e.Options["top_entropy_quantile"] != nil })
	fusedAt := index(t, "policy_loss", func(e *Entry) bool { return e.Function == "LigerFusedLinearGRPOLoss" })
	driver := index(t, "gae", func(e *Entry) bool { return e.Options["estimator"] != nil })
	rollouts := index(t, "gae", func(e *Entry) bool { return e.Options["kl_estimator"] != nil })

	for _, c := range []struct {
		name    string
		section string // the one in the folder
		change  func(t *testing.T, dir string)
		want    check.Verdict // of a result, 0: an error
		text    string        // in the error or the reason
	}{
		{"not JSON", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "kl.json"), []byte("{\"section\": kl}"), 0o644))
		}, 0, "kl.json"},
		{"empty file", "kl", func(t *testing.T, dir string) { require.NoError(t, os.Truncate(filepath.Join(dir, "kl.json"), 0)) }, 0, "kl.json"},
		{"a JSON array", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "kl.json"), []byte("[]"), 0o644))
		}, 0, "kl.json"},
		{"duplicate key", "kl", func(t *testing.T, dir string) {
			replace(t, filepath.Join(dir, "kl.json"), `"section":`, `"section":"x","section":`)
		}, 0, "duplicate key"},
		{"nested without end", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "kl.json"), []byte(strings.Repeat(`{"entries":[`, 1<<16)), 0o644))
		}, 0, "nested"},
		{"text after the end", "kl", func(t *testing.T, dir string) {
			f, err := os.OpenFile(filepath.Join(dir, "kl.json"), os.O_APPEND|os.O_WRONLY, 0)
			require.NoError(t, err)
			_, err = f.WriteString("{}")
			require.NoError(t, errors.Join(err, f.Close()))
		}, 0, "after the end"},
		{"section of another name", "kl", func(t *testing.T, dir string) { editFile(t, dir, "kl", func(f object) { f["section"] = "gae" }) }, 0, "section"},
		{"section without entries", "kl", func(t *testing.T, dir string) { editFile(t, dir, "kl", func(f object) { delete(f, "entries") }) }, 0, "entries"},
		{"no entries", "kl", func(t *testing.T, dir string) { editFile(t, dir, "kl", func(f object) { f["entries"] = []any{} }) }, check.Undetermined, "no entries"},
		{"entries that are numbers", "kl", func(t *testing.T, dir string) { editFile(t, dir, "kl", func(f object) { f["entries"] = []any{1} }) }, 0, "kl.json"},
		{"an id twice", "kl", func(t *testing.T, dir string) {
			editFile(t, dir, "kl", func(f object) { f["entries"] = append(f["entries"].([]any), f["entries"].([]any)[0]) })
		}, 0, `"kl/0000": is there twice`},
		{"an entry without a peer", "kl", entry("kl", 0, func(e object) { delete(e, "peer") }), 0, "entry 0"},
		{"a peer that is a number", "kl", entry("kl", 3, func(e object) { e["peer"] = 7 }), 0, "kl.json"},
		{"tensors file missing", "kl", func(t *testing.T, dir string) { require.NoError(t, os.Remove(filepath.Join(dir, "kl.safetensors"))) }, 0, "kl.safetensors"},
		{"tensors file outside", "kl", func(t *testing.T, dir string) {
			editFile(t, dir, "kl", func(f object) { f["file"] = "../../../etc/passwd" })
		}, 0, "no file of the folder"},
		{"tensors file is a number", "kl", func(t *testing.T, dir string) { editFile(t, dir, "kl", func(f object) { f["file"] = 1 }) }, 0, "kl.json"},
		{"tensors cut", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, "kl.safetensors"), 5000))
		}, 0, "kl.safetensors"},
		{"tensors empty", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.Truncate(filepath.Join(dir, "kl.safetensors"), 0))
		}, 0, "kl.safetensors"},
		{"a tensor that is not there", "kl", entry("kl", 2, func(e object) { in(e, "logp")["tensor"] = "nowhere" }), 0, `entry "kl/0002": logp: no tensor "nowhere"`},
		{"a shape that is not the tensor's", "kl", entry("kl", 2, func(e object) { out(e, "kl")["shape"] = []any{6, 4} }), 0, `entry "kl/0002"`},
		{"a type that is not the tensor's", "kl", entry("kl", 2, func(e object) { out(e, "kl")["dtype"] = "float32" }), 0, `entry "kl/0002"`},
		{"a type that there is not", "kl", entry("kl", 2, func(e object) { out(e, "kl")["dtype"] = "float65" }), 0, `entry "kl/0002"`},
		{"a value of two kinds", "kl", entry("kl", 2, func(e object) { out(e, "kl")["value"] = 1 }), 0, `entry "kl/0002"`},
		{"a value of no kind", "kl", entry("kl", 2, func(e object) { e["outputs"].(object)["kl"] = object{} }), 0, `entry "kl/0002"`},
		{"outputs that are a list", "kl", entry("kl", 2, func(e object) { e["outputs"] = []any{} }), 0, `entry "kl/0002"`},
		{"no outputs", "kl", entry("kl", 2, func(e object) { e["outputs"] = object{} }), 0, `entry "kl/0002"`},
		{"an output missing", "kl", entry("kl", 2, func(e object) { delete(e["outputs"].(object), "dkl_dlogp") }), 0, "output dkl_dlogp is missing"},
		{"an output of another length", "kl", entry("kl", 2, func(e object) { e["outputs"].(object)["kl"] = object{"value": []any{1, 2}} }), 0, "2 numbers"},
		{"an output that is text", "kl", entry("kl", 2, func(e object) { e["outputs"].(object)["kl"] = object{"value": "x"} }), 0, `entry "kl/0002"`},
		{"an output that the reference has not", "kl", entry("kl", 2, func(e object) { e["outputs"].(object)["more"] = object{"value": 1} }), check.Undetermined, "no output more"},
		{"an input missing", "kl", entry("kl", 2, func(e object) { delete(e["inputs"].(object), "ref_logp") }), 0, "input ref_logp is missing"},
		{"an input of another shape", "gae", entry("gae", 0, func(e object) { in(e, "values")["tensor"] = "holes/in/values" }), 0, `entry "gae/0000": input values has shape`},
		{"a mask that is not 0 and 1", "gae", entry("gae", 0, func(e object) { in(e, "response_mask")["tensor"] = "contiguous_sparse_score/in/values" }), 0, "want 0 or 1"},
		{"a scalar that is a tensor", "gae", entry("gae", 0, func(e object) { e["inputs"].(object)["gamma"] = object{"tensor": "holes/in/values"} }), 0, "input gamma is no number"},
		{"a scalar that is text", "gae", entry("gae", 0, func(e object) { e["inputs"].(object)["gamma"] = object{"value": "x"} }), 0, "input gamma is no number"},
		{"γ not a number", "gae", entry("gae", 0, func(e object) { e["inputs"].(object)["gamma"] = object{"value": "nan"} }), check.Undetermined, "NaN"},
		{"another γ", "gae", entry("gae", 0, func(e object) { e["inputs"].(object)["gamma"] = object{"value": 0.5} }), check.Fail, "beyond their bound"},
		{"an option of another type", "gae", entry("gae", 0, func(e object) { e["options"].(object)["whiten"] = "yes" }), 0, "option whiten is no boolean"},
		{"an option missing", "gae", entry("gae", 0, func(e object) { e["options"] = object{} }), 0, "option whiten is missing"},
		{"options that are null", "gae", entry("gae", 0, func(e object) { e["options"] = nil }), 0, `entry "gae/0000"`},
		{"an option too large for a number", "adamw", func(t *testing.T, dir string) {
			replace(t, filepath.Join(dir, "adamw.json"), `"lr":0.001`, `"lr":1e999`)
		}, 0, "does not fit"},
		{"an unknown option", "gae", entry("gae", 0, func(e object) { e["options"].(object)["new"] = 1 }), check.Undetermined, "option not known here: new"},
		{"an unknown value of an option", "gae", entry("gae", driver, func(e object) { e["options"].(object)["estimator"] = "gae2" }), check.Undetermined, "gae2"},
		{"an unknown function", "gae", entry("gae", 0, func(e object) { e["function"] = "f" }), check.Undetermined, "does not know this function"},
		{"an unknown peer", "gae", entry("gae", 0, func(e object) { e["peer"] = "nobody" }), check.Undetermined, "does not know this function"},
		{"a function of hostile text", "gae", entry("gae", 0, func(e object) { e["function"] = strings.Repeat("\x1b[2J", 1<<16) }), check.Undetermined, "does not know"},
		{"rows of another prompt", "gae", entry("gae", driver, func(e object) { in(e, "index")["tensor"] = "driver_g4/in/rewards" }), 0, "input index"},
		{"samples that do not divide the rows", "gae", entry("gae", driver, func(e object) { e["inputs"].(object)["n_samples_per_prompt"] = object{"value": 3} }), 0, "n_samples_per_prompt"},
		{"a clip range in the wrong order", "gae", entry("gae", driver, func(e object) { e["options"].(object)["reward_clip_range"] = []any{1, -1} }), 0, "reward_clip_range"},
		{"lengths beyond the row", "gae", entry("gae", rollouts, func(e object) { in(e, "sequence_lengths")["tensor"] = "trlppo_short/in/sequence_lengths" }), 0, "sequence_lengths"},
		{"an axis that there is not", "masked_stats", entry("masked_stats", 0, func(e object) { e["options"].(object)["axis"] = 0 }), check.Undetermined, "axis 0"},
		{"an exception that is a value here", "masked_stats", entry("masked_stats", 0, func(e object) {
			e["outputs"].(object)["mean"] = object{"raises": "RuntimeError", "message": "x"}
		}), check.Undetermined, "RuntimeError"},
		{"an exception without a type", "masked_stats", entry("masked_stats", 0, func(e object) { e["outputs"].(object)["mean"] = object{"raises": ""} }), 0, `entry "masked_stats/0000"`},
		{"prompts of another number", "group_advantages", entry("group_advantages", 0, func(e object) { e["inputs"].(object)["uid"] = object{"value": []any{"a"}} }), 0, "uid"},
		{"prompts that are objects", "group_advantages", entry("group_advantages", 0, func(e object) {
			e["inputs"].(object)["uid"] = object{"value": []any{nil, nil, nil, nil, nil, nil, nil, nil}}
		}), 0, "uid"},
		{"generations of 0", "group_advantages", entry("group_advantages", groups, func(e object) { e["inputs"].(object)["num_generations"] = object{"value": 0} }), 0, "num_generations"},
		{"generations without bounds", "group_advantages", entry("group_advantages", groups, func(e object) { e["inputs"].(object)["num_generations"] = object{"value": 1e300} }), 0, "num_generations"},
		{"weights of another number", "group_advantages", entry("group_advantages", groups, func(e object) { in(e, "reward_weights")["tensor"] = "trl_constant/in/reward_weights" }), 0, "reward_weights"},
		{"importance weights missing", "policy_loss", entry("policy_loss", vllm, func(e object) { delete(e["inputs"].(object), "importance_sampling_ratio") }), 0, "importance_sampling_ratio"},
		{"advantages of other rows", "policy_loss", entry("policy_loss", seq, func(e object) { in(e, "advantages_seq")["tensor"] = "holes_seq_adv/in/advantages_seq" }), 0, "advantages_seq"},
		{"a temperature of 0", "policy_loss", entry("policy_loss", sapo, func(e object) { e["options"].(object)["tau_pos"] = 0 }), 0, "option tau_pos is 0"},
		{"a quantile above 1", "policy_loss", entry("policy_loss", top, func(e object) { e["options"].(object)["top_entropy_quantile"] = 2 }), 0, "top_entropy_quantile"},
		{"a token outside the vocabulary", "policy_loss", entry("policy_loss", fusedAt, func(e object) { in(e, "ids")["tensor"] = "liger_linear/in/hidden" }), 0, "ids"},
		{"ids that are not whole", "logprob_entropy", entry("logprob_entropy", 0, func(e object) { in(e, "ids")["tensor"] = "ordinary_float64/in/logits" }), 0, "ids"},
		{"a temperature below 0", "logprob_entropy", entry("logprob_entropy", index(t, "logprob_entropy", func(e *Entry) bool { return e.Options["temperature"] != nil }), func(e object) {
			e["options"].(object)["temperature"] = -1
		}), 0, "temperature"},
		{"computed in an unknown type", "logprob_entropy", entry("logprob_entropy", 0, func(e object) { e["options"].(object)["dtype"] = "float8" }), check.Undetermined, "float8"},
		{"β of 1", "adamw", entry("adamw", 0, func(e object) { e["options"].(object)["betas"] = []any{1, 1} }), 0, "betas"},
		{"one β", "adamw", entry("adamw", 0, func(e object) { e["options"].(object)["betas"] = []any{0.5} }), 0, "betas"},
		{"steps of another number", "adamw", entry("adamw", 0, func(e object) { in(e, "grads")["tensor"] = "rl_float64/in/grads" }), 0, `entry "adamw/0000"`},
		{"a section that is a folder", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "kl.json")))
			require.NoError(t, os.Mkdir(filepath.Join(dir, "kl.json"), 0o755))
		}, check.Warn, "no MANIFEST.json"},
		{"a link that leads out", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "kl.json")))
			require.NoError(t, os.Symlink("/etc/passwd", filepath.Join(dir, "kl.json")))
		}, 0, "kl.json"},
		{"a link to nothing", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "kl.safetensors")))
			require.NoError(t, os.Symlink("nothing", filepath.Join(dir, "kl.safetensors")))
		}, 0, "kl.safetensors"},
		{"a link to itself", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.Symlink("more.json", filepath.Join(dir, "more.json")))
		}, 0, "more.json"},
		{"a manifest that is no object", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "MANIFEST.json"), []byte(`["kl.json"]`), 0o644))
		}, 0, "MANIFEST.json"},
		{"a manifest without digests", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "MANIFEST.json"), []byte(`{"kl.json": "x"}`), 0o644))
		}, 0, "no sha256"},
		{"an empty manifest", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "MANIFEST.json"), []byte(`{}`), 0o644))
		}, check.Fail, "is not in MANIFEST.json"},
		{"a manifest of files elsewhere", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "MANIFEST.json"), []byte(`{"../x": "`+strings.Repeat("0", 64)+`"}`), 0o644))
		}, check.Fail, "but not in the folder"},
		{"a section that no check knows", "kl", func(t *testing.T, dir string) {
			require.NoError(t, os.WriteFile(filepath.Join(dir, "rope.json"), []byte(`{"section":"rope","entries":[{"peer":"a","id":"rope/0","function":"f"},3,{"peer":4}]}`), 0o644))
		}, check.Undetermined, "no check knows this section"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := folder(t, c.section)
			c.change(t, dir)
			results, err := judgeDir(dir)
			if c.want == 0 {
				require.True(t, format.IsMalformed(err), "%v %v", err, results)
				require.ErrorContains(t, err, c.text)
				require.ErrorContains(t, err, dir, "the error names the file")
				return
			}
			require.NoError(t, err)
			for _, r := range results {
				if r.Verdict == c.want && strings.Contains(r.Reason, c.text) {
					require.NotContains(t, r.Verdict.String(), "PASS")
					return
				}
			}
			t.Fatalf("no %v with %q in %v", c.want, c.text, results)
		})
	}
}

// A folder as it is: judged with a warning for want of a manifest; with one, without.
func TestFolder(t *testing.T) {
	dir := folder(t, "kl", "adamw")
	results, err := judgeDir(dir)
	require.NoError(t, err)
	require.Equal(t, check.Warn, results[0].Verdict)
	require.Equal(t, check.ExitPass, check.Exit(results, check.Policy{}))
	require.Equal(t, "81 entries: 81 agree, 0 differ, 0 undetermined (0.0 %)", Summary(results))

	s, err := Open(context.Background(), dir)
	require.NoError(t, err)
	sums := map[string]string{}
	for _, f := range s.Files {
		sums[f.Name] = f.SHA256
	}
	require.NoError(t, s.Close())
	for _, layout := range []struct {
		name string
		text any
	}{{"MANIFEST.json", sums}, {"manifest.json", map[string]any{"producer": "x", "seed": 1, "sha256": sums}}} {
		text, err := json.Marshal(layout.text)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, layout.name), text, 0o644))
		results, err = judgeDir(dir)
		require.NoError(t, err)
		require.Equal(t, check.Pass, results[0].Verdict, layout.name)
		require.Equal(t, 4, results[0].Compared)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "extra.txt"), nil, 0o644))
		results, err = judgeDir(dir)
		require.NoError(t, err)
		require.Equal(t, check.ExitFail, check.Exit(results, check.Policy{}), "a file beside the listed ones")
		require.NoError(t, os.Remove(filepath.Join(dir, "extra.txt")))
		require.NoError(t, os.Remove(filepath.Join(dir, layout.name)))
	}

	_, err = judgeDir(filepath.Join(dir, "none"))
	require.ErrorIs(t, err, fs.ErrNotExist)
	results, err = judgeDir(t.TempDir())
	require.NoError(t, err)
	require.Equal(t, check.ExitNothing, check.Exit(results, check.Policy{}), "an empty folder")
}

// A tensor that many entries name is decoded once, and a shape without elements takes no memory for its rows.
func TestMemoryOfFolder(t *testing.T) {
	dir := t.TempDir()
	w := make([]float64, 1<<17)
	tensors := []safetensors.Tensor{{Name: "x", DType: format.F64, Shape: []int{1 << 17}, Data: w}, {Name: "none", DType: format.F64, Shape: []int{1 << 40, 0}}}
	require.NoError(t, safetensors.WriteFile(filepath.Join(dir, "kl.safetensors"), nil, tensors))
	var b strings.Builder
	b.WriteString(`{"section":"kl","file":"kl.safetensors","entries":[`)
	for i := range 2000 {
		fmt.Fprintf(&b, `{"id":"%d","peer":"liger","version":"0.8.5","function":"k3_loss_fn(ref, logp)","inputs":{"logp":{"tensor":"x"},"ref_logp":{"tensor":"x"}},"outputs":{"kl":{"tensor":"x"},"dkl_dlogp":{"tensor":"x"}}},`, i)
	}
	b.WriteString(`{"id":"none","peer":"verl","function":"agg_loss","options":{"loss_agg_mode":"token-mean"},"inputs":{"loss_mat":{"tensor":"none"},"loss_mask":{"tensor":"none"}},"outputs":{"loss":{"value":0}}}]}`)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "kl.json"), []byte(b.String()), 0o644))
	s, err := Open(context.Background(), dir)
	require.NoError(t, err)
	defer s.Close()
	all := s.Sections["kl"].Entries
	require.Same(t, &all[0].In["logp"].Data[0], &all[1999].Out["kl"].Data[0])
	o, err := judge(all[2000], aggregateLoss)
	require.True(t, format.IsMalformed(err), "%v %v", o, err)
	require.ErrorContains(t, err, "no elements")
}

// A context that has ended stops the reading and the judging.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := Embedded(ctx)
	require.NoError(t, err)
	cancel()
	_, err = Suite.Run(s, check.Selection{Select: []string{"golden/gae"}})
	require.ErrorIs(t, err, context.Canceled)
	_, err = Embedded(ctx)
	require.ErrorIs(t, err, context.Canceled)
}
