package checkpoint

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

func load(t *testing.T, p checkpoint.Paths) *checkpoint.Input {
	t.Helper()
	in, err := checkpoint.Load(context.Background(), p)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, in.Close()) })
	return in
}

func judge(t *testing.T, in *checkpoint.Input, ids ...string) []check.Result {
	t.Helper()
	results, err := checkpoint.Suite.Run(in, check.Selection{Select: ids})
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

func firstFault(results []check.Result, v check.Verdict) string {
	for _, r := range results {
		if r.Verdict == v && len(r.Explanations) > 0 {
			return r.Explanations[0].Fault
		}
	}
	return ""
}

// The report does not depend on the number of threads, down to the last bit of every sum.
func TestThreads(t *testing.T) {
	for i, sc := range scenes {
		var first []check.Result
		for _, threads := range []int{1, 3, 8} {
			in := sc.draw(random(uint64(i))).input()
			in.Threads = threads
			results, err := checkpoint.Suite.Run(in, check.Selection{})
			require.NoError(t, err)
			if first == nil {
				first = results
			}
			require.Equal(t, first, results, sc.name)
		}
	}
}

// Folders that others save and that are in order, though they are not what the checks are about.
func TestNotAlarmed(t *testing.T) {
	s := wholeScene(random(2))
	adapter := aloneScene(random(2))
	with := func(files map[string][]byte, more map[string][]byte) *tree {
		return memory("folder", files, more)
	}
	ia3 := with(map[string][]byte{"adapter_config.json": []byte(`{"peft_type": "IA3", "target_modules": ["k_proj"]}`)},
		map[string][]byte{adapterFile: pack([]safetensors.Tensor{{Name: peftPrefix + "h.0.k_proj.ia3_l", DType: format.F32, Shape: []int{4, 1}, Data: []float64{1, 2, 3, 4}}})})
	gptq := with(s.dir.Files, map[string][]byte{"model.safetensors": pack([]safetensors.Tensor{{Name: "model.layers.0.self_attn.q_proj.qweight", DType: format.I32, Shape: []int{1}, Raw: []byte{1, 0, 0, 0}}})})
	gptq.editJSON("config.json", func(o map[string]any) {
		o["quantization_config"] = map[string]any{"quant_method": "gptq", "bits": 4}
	})
	tokens := with(adapter.dir.Files, nil)
	tokens.edit(adapterFile, func(list []safetensors.Tensor) []safetensors.Tensor {
		return append(list, safetensors.Tensor{Name: peftPrefix + "model.embed_tokens.token_adapter.trainable_tokens_delta", DType: format.F32, Shape: []int{1, 16}, Data: normal(random(1), []int{16}, 1)})
	})
	for name, m := range map[string]*tree{
		"Meta's own format beside that of transformers": with(s.dir.Files, map[string][]byte{"original/consolidated.00.pth": torchFile([]member{{"tok_embeddings.weight", []int{4, 4}}}), "original/params.json": []byte("{}")}),
		"both formats":                    with(s.dir.Files, map[string][]byte{"pytorch_model.bin": torchFile([]member{{"w", []int{4}}})}),
		"a second copy of the weights":    with(s.dir.Files, map[string][]byte{"consolidated.safetensors": s.dir.Files["model.safetensors"]}),
		"a binary file that is no pickle": with(s.dir.Files, map[string][]byte{"vocab.bin": []byte("\x01\x02\x03")}),
		"another method of PEFT":          ia3,
		"another quantiser":               gptq,
		"rows of the embedding":           tokens,
		"an architecture without a list":  with(s.dir.Files, map[string][]byte{"config.json": []byte(`{"model_type": "gemma3", "architectures": ["Gemma3ForCausalLM"]}`)}),
		"an expression that Go cannot read": func() *tree {
			m := with(adapter.dir.Files, nil)
			m.editJSON("adapter_config.json", func(o map[string]any) { o["target_modules"] = "(?!lm_head).*_(proj|attn|fc)" })
			return m
		}(),
	} {
		f, err := checkpoint.NewFolder(&m.Memory)
		require.NoError(t, err)
		results, err := checkpoint.Suite.Run(&checkpoint.Input{Folder: f}, check.Selection{})
		require.NoError(t, err)
		for _, r := range results {
			require.NotEqual(t, check.Fail, r.Verdict, "%s: %s %s", name, r.Check, r.Reason)
		}
		require.NoError(t, (&checkpoint.Input{Folder: f}).Refused(), name)
	}
}

// A regular expression that only Python reads leaves the modules in the file to judge by: the same ones in every layer, or it is
// open whether one is missing.
func TestPatternOfPython(t *testing.T) {
	s := newScene(random(3), "llama")
	s.dir = memory("adapter", s.peftFolder(s.adapter(true)))
	s.dir.editJSON("adapter_config.json", func(o map[string]any) {
		o["target_modules"] = `^(model(?=\.).*\.(` + strings.Join(s.lora.targets, "|") + `))$`
	})
	judge := func() check.Result {
		results, err := checkpoint.Suite.Run(s.input(), check.Selection{Select: []string{"adapter/targets"}})
		require.NoError(t, err)
		require.Len(t, results, 1)
		return results[0]
	}
	require.Equal(t, check.Pass, judge().Verdict)
	without(s.dir, adapterFile, s.model.BlockName(0)+s.target())
	r := judge()
	require.Equal(t, check.Undetermined, r.Verdict)
	require.Contains(t, r.Reason, s.model.BlockName(0)+s.target())
}
