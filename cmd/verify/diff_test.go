package main

import (
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/report"
)

// diffRun writes a run of two steps of 8 rows: the engine's log-probs are the trainer's with the rounding of bfloat16, and what change
// makes of them.
func diffRun(t *testing.T, dir string, change func(r *rand.Rand, i int, trainer, engine float64) (a, b float64)) {
	t.Helper()
	const rows, cols = 8, 24
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for step := 1; step <= 2; step++ {
		r := rand.New(rand.NewPCG(uint64(step), 11))
		old, gen, ids := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
		mask := make([]bool, rows*cols)
		for i := range old {
			mask[i] = true
			old[i] = -4 * r.Float64()
			gen[i] = math.Min(0, old[i]+0.03*r.NormFloat64()*-math.Expm1(old[i]))
			ids[i] = float64(32 + r.IntN(90))
			if change != nil {
				old[i], gen[i] = change(r, i, old[i], gen[i])
			}
		}
		token := func(name string, d format.DType, data []float64) *dumpfile.Tensor {
			return &dumpfile.Tensor{Name: name, Type: d, Shape: []int{rows, cols}, Data: data}
		}
		list := []*dumpfile.Tensor{dumpfile.NewMask("response_mask", rows, cols, mask), token("response_ids", format.I32, ids), token("logp_old", format.F32, old)}
		if gen[0] != 1 {
			list = append(list, token("logp_gen", format.F32, gen))
		}
		require.NoError(t, dumpfile.WriteFile(filepath.Join(dir, "step_"+string(rune('0'+step))+".safetensors"), dumpfile.Meta{Step: step, DLogpScale: 1}, list...))
	}
}

// diffWorkspace makes the runs of these tests.
func diffWorkspace(t *testing.T) string {
	dir := t.TempDir()
	same := func(_ *rand.Rand, _ int, a, b float64) (float64, float64) { return a, b }
	for name, change := range map[string]func(r *rand.Rand, i int, a, b float64) (float64, float64){
		"run": same, "again": same,
		"filled": func(r *rand.Rand, i int, a, b float64) (float64, float64) {
			if i%9 == 0 {
				return -2, 0
			}
			return a, b
		},
		"stale":  func(r *rand.Rand, _ int, a, b float64) (float64, float64) { return a, b + 0.9*r.NormFloat64() },
		"nan":    func(_ *rand.Rand, i int, a, b float64) (float64, float64) { return a, math.Log(float64(i - 3)) },
		"copied": func(_ *rand.Rand, _ int, a, _ float64) (float64, float64) { return a, a },
		"engineless": func(_ *rand.Rand, _ int, a, _ float64) (float64, float64) {
			return a, 1
		},
		"other": func(_ *rand.Rand, i int, a, b float64) (float64, float64) {
			if i == 100 {
				a -= 0.5
			}
			return a, b
		},
	} {
		diffRun(t, filepath.Join(dir, name), change)
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "broken.safetensors"), []byte("not a file of tensors"), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "empty"), 0o755))
	tokens, err := os.ReadFile("../../internal/assets/tiny/tokenizer.json")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), tokens, 0o644))
	return dir
}

// One exit code and one fragment for each kind of run, from the built program.
func TestDiffCases(t *testing.T) {
	dir := diffWorkspace(t)
	for _, c := range []struct {
		args     string
		code     int
		fragment string
	}{
		{"run", 0, "this is rounding, no more than that of bfloat16"},
		{"run --tokenizer tokenizer.json", 0, `"`},
		{"run -v", 0, "worst tokens"},
		{"filled", 1, "GEN-ZERO"},
		{"stale", 1, "OTHER-WEIGHTS"},
		{"nan", 1, "not finite"},
		{"copied", 5, "not two measurements"},
		{"copied --require diff/passes", 6, "not two measurements"},
		{"engineless", 5, "logp_gen"},
		{"run again", 0, "equal bit by bit"},
		{"run again --relation repeat", 0, "equal bit by bit"},
		{"run again --relation partition", 0, "equal bit by bit"},
		{"run other", 1, "logp_old of step 1"},
		{"run other --relation repeat", 1, "DROPOUT-ON"},
		{"run other --relation toggle=logp.temperature", 0, "changes logp_old"},
		{"run again --relation toggle=logp.temperature", 1, "OPTION-IGNORED"},
		{"run/step_1.safetensors again/step_2.safetensors --relation repeat", 6, "no step in common"},
		{"broken.safetensors", 4, "broken.safetensors"},
		{"run broken.safetensors", 4, "broken.safetensors"},
		{"empty", 5, "no .safetensors"},
		{"missing", 2, "missing"},
		{"run missing", 2, "missing"},
		{"", 2, "one run or two"},
		{"run again other", 2, "one run or two"},
		{"run --relation repeat", 2, "name the second"},
		{"run again --relation sometimes", 2, "--relation"},
		{"run again --relation toggle", 2, "toggle=OPTION"},
		{"run again --tensor loss", 2, "--tensor"},
		{"run --tokenizer broken.safetensors", 4, "broken.safetensors"},
		{"run --select diff/nothing", 2, "no check matches"},
		{"run -o run/step_1.safetensors", 2, "is an input"},
		{"run -", 2, "not read from stdin"},
	} {
		t.Run(c.args, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, code := verify(t, dir, append([]string{"diff"}, strings.Fields(c.args)...)...)
			require.Equal(t, c.code, code, "%s%s", stdout, stderr)
			require.Contains(t, strings.Join(strings.Fields(stdout+stderr), " "), c.fragment)
		})
	}
}

// All forms say the same, the JSON one as its schema has it, and every name in it is explained.
func TestDiffForms(t *testing.T) {
	dir := diffWorkspace(t)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(string(report.Schema)))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("report.json", doc))
	schema, err := compiler.Compile("report.json")
	require.NoError(t, err)
	for args, name := range map[string]string{"filled": "GEN-ZERO", "run other --relation repeat": "DROPOUT-ON", "stale": "OTHER-WEIGHTS"} {
		stdout, _, code := verify(t, dir, append(append([]string{"diff"}, strings.Fields(args)...), "--format", "json")...)
		require.Equal(t, 1, code)
		got, err := jsonschema.UnmarshalJSON(strings.NewReader(stdout))
		require.NoError(t, err)
		require.NoError(t, schema.Validate(got))
		finding := got.(map[string]any)["findings"].([]any)[0].(map[string]any)
		require.Equal(t, name, finding["name"])
		text, _, code := verify(t, dir, "explain", name)
		require.Equal(t, 0, code)
		require.Contains(t, text, name)
		for _, form := range []string{"junit", "markdown"} {
			stdout, _, code := verify(t, dir, append(append([]string{"diff"}, strings.Fields(args)...), "--format", form)...)
			require.Equal(t, 1, code)
			require.Contains(t, stdout, name)
		}
	}
}

// The commands of the page run as they are, and end as the page says: # exit N behind a command, else 0.
func TestDiffPage(t *testing.T) {
	dir := diffWorkspace(t)
	page, err := os.ReadFile("../../docs/diff.md")
	require.NoError(t, err)
	n := 0
	for _, line := range regexp.MustCompile(`(?m)^verify .*$`).FindAllString(string(page), -1) {
		command, comment, _ := strings.Cut(line, "#")
		want := 0
		if m := regexp.MustCompile(`exit (\d)`).FindStringSubmatch(comment); m != nil {
			want = int(m[1][0] - '0')
		}
		stdout, stderr, code := verify(t, dir, strings.Fields(command)[1:]...)
		require.Equal(t, want, code, "%s\n%s%s", line, stdout, stderr)
		n++
	}
	require.Greater(t, n, 5)
}
