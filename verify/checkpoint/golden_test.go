package checkpoint

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/hf"
	"plumbline/verify/check"
)

// The fingerprint of a base is the one that the loader of models computes.
func TestFingerprint(t *testing.T) {
	for _, name := range []string{"hf_llama_sharded", "hf_gpt2", "hf_llama_int8"} {
		f, err := hf.Open(filepath.Join(goldens, name))
		require.NoError(t, err)
		want, err := f.Fingerprint()
		require.NoError(t, err)
		require.NoError(t, f.Close())
		in := load(t, Paths{Dir: filepath.Join(goldens, name)})
		got, err := in.Folder.fingerprint(in.Folder.model())
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
}

const goldens = "../../golden/checkpoint"

// made is what the libraries that wrote a folder say of it (golden/gen/checkpoint).
type made struct {
	Family, Kind, Base, Adapter, Resumable, Quantised string
	ModelType                                         string  `json:"model_type"`
	Alpha                                             float64 `json:"lora_alpha"`
	R, Step, Shards                                   int
	Fresh, Optimizer                                  bool
	RSLora                                            bool   `json:"use_rslora"`
	ValueHead                                         string `json:"value_head"`
	AdapterFolder                                     string `json:"adapter_folder"`
	Modules                                           map[string]struct {
		R       int
		Scaling float64
		In, Out int
	}
}

func producers(t *testing.T) map[string]made {
	text, err := os.ReadFile(filepath.Join(goldens, "EXPECT.json"))
	require.NoError(t, err)
	var all struct{ Folders map[string]made }
	require.NoError(t, json.Unmarshal(text, &all))
	require.GreaterOrEqual(t, len(all.Folders), 30)
	return all.Folders
}

func load(t *testing.T, p Paths) *Input {
	t.Helper()
	in, err := Load(context.Background(), p)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, in.Close()) })
	return in
}

func judge(t *testing.T, in *Input, ids ...string) []check.Result {
	t.Helper()
	results, err := Suite.Run(in, check.Selection{Select: ids})
	require.NoError(t, err)
	return results
}

// failures returns the results that are FAIL, and those that decided nothing.
func failures(results []check.Result) (bad []string) {
	for _, r := range results {
		if r.Verdict == check.Fail || r.Verdict == check.Undetermined {
			bad = append(bad, r.Verdict.String()+" "+r.Check+" "+r.Subject+": "+r.Reason+" "+r.Where)
		}
	}
	return bad
}

// Folders that transformers, PEFT, TRL, verl and OpenRLHF wrote pass, alone and with their base, and are read as what
// their makers say they are.
func TestGoldens(t *testing.T) {
	for name, want := range producers(t) {
		t.Run(name, func(t *testing.T) {
			p := Paths{Dir: filepath.Join(goldens, name)}
			if want.Base != "" && want.Adapter == "" && want.Quantised == "" {
				p.Base = filepath.Join(goldens, want.Base)
			}
			if want.Quantised != "" {
				p.Base = filepath.Join(goldens, want.Base)
			}
			in := load(t, p)
			results := judge(t, in)
			if want.Fresh {
				require.Len(t, failures(results), 1)
				require.Equal(t, "P183", firstFault(results, check.Fail))
				return
			}
			require.Empty(t, failures(results))
			require.Equal(t, check.ExitPass, check.Exit(results, check.Policy{}))
			for _, u := range in.Folder.of(Adapter) {
				require.Equal(t, want.R, u.Lora.R)
				require.Equal(t, want.Alpha, u.Lora.Alpha)
				if want.Modules == nil || len(in.Folder.of(Adapter)) > 1 {
					continue
				}
				require.Len(t, u.pairs, len(want.Modules))
				for _, q := range u.pairs {
					m, ok := want.Modules[q.module]
					require.True(t, ok, q.module)
					require.Equal(t, m.R, q.rank(), q.module)
					require.Equal(t, m.Scaling, u.Lora.Scaling(q.module), q.module)
					require.Equal(t, [2]int{m.In, m.Out}, [2]int{q.in(), q.out()}, q.module)
				}
			}
			if want.ValueHead != "" {
				in.Needs = []string{"value-head"}
				require.Empty(t, failures(judge(t, in, "value/head")))
				require.NotEmpty(t, judge(t, in, "value/head"))
			}
			if want.Resumable != "" {
				found := judge(t, in, "resume")
				require.True(t, slices.ContainsFunc(found, func(r check.Result) bool { return r.Check == "resume/optimizer" && r.Verdict == check.Pass }), "%v", found)
			}
		})
	}
}

func firstFault(results []check.Result, v check.Verdict) string {
	for _, r := range results {
		if r.Verdict == v && len(r.Explanations) > 0 {
			return r.Explanations[0].Fault
		}
	}
	return ""
}

// What PEFT and OpenRLHF merged is base + s·B·A within half a unit, and with the adapter of another run it is not.
func TestGoldenMerges(t *testing.T) {
	all := producers(t)
	n := 0
	for name, want := range all {
		if want.Adapter == "" {
			continue
		}
		n++
		t.Run(name, func(t *testing.T) {
			p := Paths{Dir: filepath.Join(goldens, want.Adapter), Base: filepath.Join(goldens, want.Base), Merged: filepath.Join(goldens, name)}
			results := judge(t, load(t, p), "merge")
			require.Len(t, results, 3)
			require.Empty(t, failures(results))
			p.Merged = p.Base
			require.Equal(t, "P086", firstFault(judge(t, load(t, p), "merge"), check.Fail))
			if all[want.Adapter].RSLora {
				in := load(t, Paths{Dir: filepath.Join(goldens, want.Adapter), Base: filepath.Join(goldens, want.Base), Merged: filepath.Join(goldens, name)})
				in.Folder.adapter().Lora.RSLora = false
				require.Equal(t, "P197", firstFault(judge(t, in, "merge"), check.Fail))
			}
		})
	}
	require.GreaterOrEqual(t, n, 5)
}
