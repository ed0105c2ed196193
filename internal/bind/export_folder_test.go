package bind

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/safetensors"
	"plumbline/reference/ad"
	"plumbline/reference/model"
	"plumbline/reference/sampling"
)

// What train export writes today is byte for byte what transformers loaded when golden/export was made, and what transformers computed from
// it is what the reference computes from the model: in float64 on both sides, to 1e-9 of the largest logit: a product of 16 to 256 terms is
// off by some 256·2⁻⁵³ of the sum of its absolute terms, two layers of them by 1e-12 of it; what is lost beside that is a look-alike's. A
// judge's weight is A·w rounded to float32: its logit may be off by 2⁻²⁴·Σ|A·w_i·h_i|.
func TestExportAgainstTransformers(t *testing.T) {
	text, err := os.ReadFile("../../golden/export/logits.json")
	require.NoError(t, err)
	var cases []struct {
		Model, Class   string
		Files          map[string]string
		IDs            []int
		Pad            int
		Logits, Padded []float64
	}
	require.NoError(t, json.Unmarshal(text, &cases))
	require.Len(t, cases, 4)
	for _, c := range cases {
		path := c.Model
		if path != TinyMasked && path != TinyJudge {
			path = filepath.Join("../../golden/export", path)
		}
		e, err := ExportFolder(path)
		require.NoError(t, err)
		require.Equal(t, c.Class, e.Class)
		files := map[string]string{}
		for name, text := range e.Files {
			sum := sha256.Sum256(text)
			files[name] = hex.EncodeToString(sum[:])
		}
		require.Equal(t, c.Files, files, "%s: run golden/gen/export/produce.py, which loads it with transformers", c.Model)

		f, err := OpenMasked(path, 0)
		require.NoError(t, err)
		for _, padded := range []bool{false, true} {
			in, want := model.Input{Batch: 1, Time: len(c.IDs), IDs: append([]int(nil), c.IDs...)}, c.Logits
			kept := len(c.IDs)
			if padded {
				want, kept = c.Padded, len(c.IDs)-c.Pad
				in.Real = make([]bool, len(c.IDs))
				for i := range in.IDs {
					if in.Real[i] = i < kept; !in.Real[i] {
						in.IDs[i] = f.Model.Config.Pad
					}
				}
			}
			n := f.Model.On(&ad.Tape{}, nil)
			hidden := n.Forward(in).Hidden
			var got []float64
			bound := 0.0
			if f.Model.Config.Mode == model.SequenceScorer {
				y := n.Score(in).Data()[0]
				got = []float64{math.Log(y) - math.Log1p(-y)}
				for i, w := range f.weights["sequence_head.base_predictor.weight"] {
					bound += 0x1p-24 * math.Abs(w*f.weights["sequence_head.A"][0]*hidden.Data()[i])
				}
			} else {
				got = n.Logits(hidden).Data()[:kept*f.Model.Config.Vocab]
			}
			require.Len(t, want, len(got))
			for _, x := range want {
				bound = max(bound, 1e-9*math.Abs(x))
			}
			for i, x := range want {
				require.InDelta(t, x, got[i], bound, "%s, padded %t, logit %d", c.Model, padded, i)
			}
		}
	}
}

// Every part of a model counts in what is compared: with one number of any tensor changed the files are others.
func TestExportTakesEveryTensor(t *testing.T) {
	for _, name := range []string{"biased", "biased_judge"} {
		f, err := OpenMasked(filepath.Join("../../golden/export", name), 0)
		require.NoError(t, err)
		before, err := f.Export()
		require.NoError(t, err)
		for tensor, w := range f.weights {
			at := len(w) - 1
			if tensor == "transformer.wte.weight" {
				at = 0
			}
			old := w[at]
			w[at] = old + 1
			after, err := f.Export()
			require.NoError(t, err)
			require.False(t, bytes.Equal(before.Files[WeightsFile], after.Files[WeightsFile]), "%s is not exported", tensor)
			w[at] = old
		}
	}
}

func TestExportRefused(t *testing.T) {
	adapter := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(adapter, "adapter_config.json"), []byte(`{}`), 0o644))
	agent := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(agent, "config.json"), []byte(`{"model_type": "arcagent", "text": {"model_type": "bert"}}`), 0o644))
	for path, says := range map[string]string{adapter: "PeftModel.from_pretrained", "../assets/tiny": `model_type "qwen2"`, agent: "bert", t.TempDir(): "no such file"} {
		_, err := ExportFolder(path)
		require.ErrorContains(t, err, says, path)
	}
	e, err := ExportFolder(TinyMasked)
	require.NoError(t, err)
	require.ErrorContains(t, e.Write(adapter), "is not empty")
	dir := filepath.Join(t.TempDir(), "out")
	require.NoError(t, e.Write(dir))
	f, err := safetensors.Open(filepath.Join(dir, WeightsFile))
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// Fill draws no special token, keeps what is no mask, and gives equal texts for equal seeds.
func TestFill(t *testing.T) {
	f, err := OpenMasked(TinyMasked, 0)
	require.NoError(t, err)
	one, err := f.Fill("Shall I comp___ thee", sampling.Options{Temperature: 3}, 7)
	require.NoError(t, err)
	two, err := f.Fill("Shall I comp___ thee", sampling.Options{Temperature: 3}, 7)
	require.NoError(t, err)
	require.Equal(t, one, two)
	require.Regexp(t, `^(?s:Shall I comp[^_]{3} thee)$`, one)
	other, err := f.Fill("Shall I comp___ thee", sampling.Options{Temperature: 3}, 8)
	require.NoError(t, err)
	require.NotEqual(t, one, other)
	for text, says := range map[string]string{"": "no characters", "Shall": "no _", "€_": "is not in it", string(bytes.Repeat([]byte("_"), 65)): "64 positions"} {
		_, err := f.Fill(text, sampling.Options{}, 0)
		require.ErrorContains(t, err, says)
	}
}
