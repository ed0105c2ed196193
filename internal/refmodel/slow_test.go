//go:build slow

package refmodel

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/safetensors"
	"plumbline/internal/pretrained"
	"plumbline/internal/tokenizer"
	"plumbline/reference/model"
)

// smolLM2 is what transformers@5.23.0 computes with SmolLM2-135M-Instruct: golden/gen/smollm2/record.py.
type smolLM2 struct {
	Prompts map[string]*struct {
		Text           string
		IDs            []int
		Greedy         []int
		GreedyText     string  `json:"greedy_text"`
		ErrorOfFloat32 float64 `json:"error_of_float32"`
		Positions      map[string]map[string]struct{ Logsumexp, Logit float64 }
	}
	Stride int
}

// realModel returns the folder that make real-model fills, and skips the test where it has not.
func realModel(t testing.TB) string {
	cache, err := os.UserCacheDir()
	require.NoError(t, err)
	dir := filepath.Join(cache, "plumbline", "smollm2")
	if _, err := os.Stat(filepath.Join(dir, "hf", "model.safetensors")); err != nil {
		t.Skipf("SmolLM2 is not in %s: run make real-model", dir)
	}
	return dir
}

func TestSmolLM2(t *testing.T) {
	dir := realModel(t)
	const recorded = "../../golden/models/smollm2/"
	text, err := os.ReadFile(recorded + "golden.json")
	require.NoError(t, err)
	var g smolLM2
	require.NoError(t, json.Unmarshal(text, &g))
	require.GreaterOrEqual(t, len(g.Prompts), 8)
	rows, err := safetensors.Open(recorded + "logits.safetensors")
	require.NoError(t, err)
	defer rows.Close()

	first := map[string][]float64{} // logits by prompt, from the GGUF file
	for _, path := range []string{"SmolLM2-135M-Instruct.Q4_1.gguf", "hf"} {
		m, err := Open(filepath.Join(dir, path), Options{})
		require.NoError(t, err)
		require.Empty(t, m.Notes)
		require.Equal(t, []int{2}, m.EOS)
		end := m.EOS
		for name, p := range g.Prompts {
			require.Equal(t, p.IDs, m.Encode(p.Text, true), name)
			if _, message, ok := strings.Cut(p.Text, "<|im_start|>user\n"); ok {
				message, _, _ = strings.Cut(message, "<|im_end|>")
				chat, err := m.Chat(message)
				if m.Template == "" {
					require.ErrorIs(t, err, pretrained.ErrTemplate)
				} else {
					require.NoError(t, err)
					require.Equal(t, p.IDs, chat, name)
				}
			}
			if path != "hf" || name == "capital" { // the logits of the other are the same to the bit, see below
				m.EOS = nil // the recording goes on after the token that ends a text
				got, err := m.Generate(context.Background(), p.IDs, GenerateOptions{Tokens: 20}, nil)
				m.EOS = end
				require.NoError(t, err)
				require.Equal(t, p.Greedy, got, "%s %s", path, name)
				out, err := m.Tokenizer.Decode(got, tokenizer.DecodeOptions{})
				require.NoError(t, err)
				require.Equal(t, p.GreedyText, out, name)
			}
			all := logits(m, slices.Concat(p.IDs, p.Greedy[:19]))
			if path == "hf" {
				require.Equal(t, first[name], all, "%s: the folder and the GGUF file hold the same weights", name)
			}
			first[name] = all
			worst := g.compare(t, rows, name, all, m.Base.Config.Vocab)
			t.Logf("%s %s: at most %.2g of the allowance", path, name, worst)
			require.LessOrEqual(t, worst, 1.0, "%s %s", path, name)
		}
	}
}

// compare returns the largest difference of logits to what was recorded, over what is allowed. Against float32 that is twice,
// and against float64 once, the largest difference between the recorded float32 and float64 logits of the prompt. It is an
// empirical allowance (a bound that adds up the roundings of 30 layers is void): what transformers computes in float64 leaves
// RMSNorm, softmax and the rotary table in float32, a part of the roundings of its float32 run, so it is no farther from exact
// than that run; ours has none of them.
func (g *smolLM2) compare(t testing.TB, rows *safetensors.File, name string, all []float64, vocab int) (worst float64) {
	p := g.Prompts[name]
	see := func(got, want, allowed float64) {
		d := math.Abs(got-want) / allowed
		if math.IsNaN(d) {
			d = math.Inf(1)
		}
		worst = max(worst, d)
	}
	times := map[string]float64{"float32": 2, "float64": 1}
	seen := 0
	for at, kinds := range p.Positions {
		var i int
		require.NoError(t, json.Unmarshal([]byte(at), &i))
		row := all[i*vocab : (i+1)*vocab]
		best := slices.Max(row)
		sum := 0.0
		for _, z := range row {
			sum += math.Exp(z - best)
		}
		for kind, s := range kinds {
			see(best, s.Logit, times[kind]*p.ErrorOfFloat32)
			see(best+math.Log(sum), s.Logsumexp, times[kind]*p.ErrorOfFloat32)
			seen++
		}
	}
	require.Equal(t, 4, seen)
	for kind, k := range times {
		if a, ok := rows.Tensor(name + "." + kind); ok {
			want, err := a.Float64s()
			require.NoError(t, err)
			row := all[(len(p.IDs)-1)*vocab : len(p.IDs)*vocab]
			for j, w := range want {
				see(row[j*g.Stride], w, k*p.ErrorOfFloat32)
			}
		}
	}
	return worst
}

// A wrong fact about the real model must leave the allowance: fluent nonsense is not caught by reading it.
func TestSmolLM2CatchesFaults(t *testing.T) {
	dir := realModel(t)
	text, err := os.ReadFile("../../golden/models/smollm2/golden.json")
	require.NoError(t, err)
	var g smolLM2
	require.NoError(t, json.Unmarshal(text, &g))
	rows, err := safetensors.Open("../../golden/models/smollm2/logits.safetensors")
	require.NoError(t, err)
	defer rows.Close()
	m, err := Open(filepath.Join(dir, "hf"), Options{})
	require.NoError(t, err)
	right := m.Base
	ids := slices.Concat(g.Prompts["capital"].IDs, g.Prompts["capital"].Greedy[:19])
	same := func(name string, v []float64) []float64 { return v }
	for name, fault := range map[string]struct {
		config func(c *model.Config)
		weight func(name string, v []float64) []float64
	}{
		"rope_theta 10000 in place of 100000": {func(c *model.Config) { c.RoPE.Theta = 10000 }, same},
		"epsilon 1e-6 in place of 1e-5":       {func(c *model.Config) { c.Eps = 1e-6 }, same},
		"rows of q and k left as in GGUF": {func(*model.Config) {}, func(name string, v []float64) []float64 {
			if !strings.Contains(name, "q_proj") && !strings.Contains(name, "k_proj") {
				return v
			}
			c := right.Config
			w := make([]float64, len(v))
			for r := range len(v) / c.Hidden { // row 2j+p of a head is row p·D/2+j of transformers
				h, i := r/c.HeadDim, r%c.HeadDim
				copy(w[r*c.Hidden:(r+1)*c.Hidden], v[(h*c.HeadDim+i%2*c.HeadDim/2+i/2)*c.Hidden:][:c.Hidden])
			}
			return w
		}},
		"key-value heads exchanged": {func(*model.Config) {}, func(name string, v []float64) []float64 {
			if !strings.Contains(name, "v_proj") {
				return v
			}
			n := len(v) / right.Config.KVHeads
			return slices.Concat(v[n:], v[:n])
		}},
	} {
		c := right.Config
		fault.config(&c)
		m.Base, err = model.New(c, func(name string, _ ...int) ([]float64, error) { return fault.weight(name, right.Data(name)), nil })
		require.NoError(t, err)
		worst := g.compare(t, rows, "capital", logits(m, ids), c.Vocab)
		t.Logf("%s: %.3g of the allowance", name, worst)
		require.Greater(t, worst, 1.0, name)
	}
}
