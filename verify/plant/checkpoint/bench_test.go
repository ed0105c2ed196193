package checkpoint

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

// wide is a merged GPT-J of one layer that is wide enough for the elements to count.
func wide(dtype format.DType) *scene {
	s := newScene(random(1), "gptj")
	s.model.Hidden, s.model.HeadDim, s.model.Inner, s.model.Layers = 512, 256, 1024, 2
	s.lora = loraShape{r: 16, alpha: 32, targets: []string{"q_proj", "v_proj"}, dtype: format.F32}
	weights, adapter := s.model.weights(s.r, dtype), s.adapter(true)
	s.dir = memory("adapter", s.peftFolder(adapter))
	s.base = memory("lab/tiny", s.model.modelFolder(weights, 1))
	s.merged = memory("merged", s.model.modelFolder(s.merge(weights, adapter, s.scaling()), 1))
	return s
}

// BenchmarkFinite measures the pass over all elements of a model.
func BenchmarkFinite(b *testing.B) {
	for _, d := range []format.DType{format.BF16, format.F32} {
		b.Run(d.String(), func(b *testing.B) {
			s := wide(d)
			s.dir = s.base
			b.SetBytes(int64(len(s.dir.Files["model.safetensors"])))
			for b.Loop() {
				results, err := checkpoint.Suite.Run(s.input(), check.Selection{Select: []string{"weights/finite"}})
				require.NoError(b, err)
				require.Len(b, results, 1)
			}
		})
	}
}

// BenchmarkMerge measures merged − base against s·B·A, in bytes of the merged modules.
func BenchmarkMerge(b *testing.B) {
	s := wide(format.BF16)
	b.SetBytes(4 * 512 * 512 * 2)
	for b.Loop() {
		results, err := checkpoint.Suite.Run(s.input(), check.Selection{Select: []string{"merge"}})
		require.NoError(b, err)
		require.Empty(b, failures(results))
	}
}

// BenchmarkAgainst measures the comparison of two models.
func BenchmarkAgainst(b *testing.B) {
	s := wide(format.BF16)
	s.dir, s.against, s.base, s.merged = s.merged, s.base, nil, nil
	b.SetBytes(int64(len(s.dir.Files["model.safetensors"])))
	for b.Loop() {
		_, err := checkpoint.Suite.Run(s.input(), check.Selection{Select: []string{"against"}})
		require.NoError(b, err)
	}
}
