//go:build unix

package main

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// Adapters that must be refused with exit code 4: where a sound one comes from and how it is broken.
func TestHostileAdapters(t *testing.T) {
	list := filepath.Join(goldens, "cases", "list")
	const weights, config = "/adapter_model.safetensors", "/adapter_config.json"
	for _, c := range []struct {
		name, from string
		spoil      func(t testing.TB, dir string)
		says       []string
	}{
		{"for a base of other widths", "../../golden/models/llama/adapter", nil, []string{"the base has", "an adapter for another base"}},
		{"for another family", goldens + "/cases/gpt2", nil, []string{"the base has no such module: an adapter for another base; it has q_proj"}},
		{"with another fingerprint", goldens + "/written/list", onFile(weights, func(t testing.TB, path string) {
			require.NoError(t, safetensors.WriteFile(path, map[string]string{"base_fingerprint": strings.Repeat("0", 64)}, tensors(t, path)))
		}), []string{"base_fingerprint", "an adapter for another base"}},
		{"empty", list, onFile(weights, func(t testing.TB, path string) {
			require.NoError(t, safetensors.WriteFile(path, map[string]string{"format": "pt"}, nil))
		}),
			[]string{"has no tensors: an empty adapter"}},
		{"zero-length tensors", list, onFile(weights, edit("0.self_attn.q_proj.lora_A.weight", func(x *safetensors.Tensor) { x.Shape, x.Data = []int{0}, nil })),
			[]string{"lora_A.weight: has shape (0,)"}},
		{"another rank", list, onFile(config, func(t testing.TB, path string) { replace(t, path, `"r": 4`, `"r": 8`) }), []string{"has shape (4, 16), but the rank of this module is 8"}},
		{"NaN", list, onFile(weights, edit("1.self_attn.v_proj.lora_B.weight", func(x *safetensors.Tensor) { x.Data[3] = math.NaN() })),
			[]string{"1.self_attn.v_proj.lora_B.weight", "element 3 is NaN"}},
		{"a factor lost", list, onFile(weights, func(t testing.TB, path string) {
			rewrite(t, path, func(l []safetensors.Tensor) []safetensors.Tensor { return l[1:] })
		}), []string{"is missing, its other factor is there"}},
		{"a layer lost", list, onFile(weights, func(t testing.TB, path string) {
			rewrite(t, path, func(l []safetensors.Tensor) []safetensors.Tensor {
				return slices.DeleteFunc(l, func(x safetensors.Tensor) bool { return strings.Contains(x.Name, "layers.1") })
			})
		}), []string{"model.layers.1.self_attn.q_proj.lora_A.weight: is missing: the module is a target"}},
		{"a layer too many", list, onFile(weights, func(t testing.TB, path string) {
			rewrite(t, path, func(l []safetensors.Tensor) []safetensors.Tensor {
				for _, x := range slices.Clone(l) {
					if strings.Contains(x.Name, "layers.1") {
						x.Name = strings.Replace(x.Name, "layers.1", "layers.2", 1)
						l = append(l, x)
					}
				}
				return l
			})
		}), []string{"model.layers.2.self_attn.q_proj: the base has no such module"}},
		{"a whole model", list, onFile(weights, func(t testing.TB, path string) {
			rewrite(t, path, func(l []safetensors.Tensor) []safetensors.Tensor {
				return append(l, safetensors.Tensor{Name: "base_model.model.model.norm.weight", DType: format.F32, Shape: []int{1}, Data: []float64{1}})
			})
		}), []string{"model.norm.weight: is no part of a LoRA adapter"}},
		{"a pickle", list, func(t testing.TB, dir string) { require.NoError(t, os.Rename(dir+weights, dir+"/adapter_model.bin")) }, []string{"python -c"}},
		{"no adapter", list, func(t testing.TB, dir string) { require.NoError(t, os.Remove(dir+config)) }, []string{"has no adapter_config.json"}},
		{"DoRA", list, onFile(config, func(t testing.TB, path string) { replace(t, path, `"use_dora": false`, `"use_dora": true`) }), []string{"use_dora: is not supported"}},
		{"another method", list, onFile(config, func(t testing.TB, path string) { replace(t, path, `"LORA"`, `"IA3"`) }), []string{`peft_type: is "IA3", supported: "LORA"`}},
		{"with biases of B", goldens + "/cases/bias", nil, []string{"biases of B are not supported"}},
		{"with a saved module lost", goldens + "/cases/saved", onFile(weights, func(t testing.TB, path string) {
			rewrite(t, path, func(l []safetensors.Tensor) []safetensors.Tensor {
				return slices.DeleteFunc(l, func(x safetensors.Tensor) bool { return strings.HasSuffix(x.Name, "lm_head.weight") })
			})
		}), []string{"lm_head.weight: is missing: it is trained whole"}},
		{"with a resized head", goldens + "/cases/saved", onFile(weights, edit("lm_head.weight", func(x *safetensors.Tensor) { x.Shape, x.Data = []int{28, 16}, x.Data[:28*16] })),
			[]string{"lm_head.weight: has shape [28 16], in the base it is [29 16]"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for _, name := range []string{weights, config} {
				copyFile(t, c.from+name, dir+name)
			}
			if c.spoil != nil {
				c.spoil(t, dir)
			}
			refuse(t, c.says, "--model", healthy(t), "--adapter", dir)
		})
	}
}

func onFile(name string, f func(t testing.TB, path string)) func(t testing.TB, dir string) {
	return func(t testing.TB, dir string) { f(t, dir+name) }
}
