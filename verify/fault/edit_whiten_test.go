package fault

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// whitenedStep returns a step of GAE with γ = λ = 1 and values of 0, of rows of different lengths: the advantage of a token is the sum of the rewards
// from there on, which a program whitens.
func whitenedStep(whiten func(x []float64, mask []bool, i int) float64) *dump.Batch {
	r := rand.New(rand.NewPCG(4, 2))
	const rows, cols = 8, 6
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows),
		Files: []dump.FileInfo{{Lo: 0, Hi: rows, Cols: cols}}}
	b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
	reward, x, adv := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
	for i := range reward {
		if b.Mask[i] = i%cols < 2+i/cols%5; b.Mask[i] {
			reward[i] = float64(float32(r.NormFloat64()))
		}
	}
	for i := rows*cols - 1; i >= 0; i-- {
		if b.Mask[i] {
			x[i] = reward[i]
			if (i+1)%cols != 0 && b.Mask[i+1] {
				x[i] += x[i+1]
			}
		}
	}
	for i := range adv {
		if b.Mask[i] {
			adv[i] = float64(float32(whiten(x, b.Mask, i)))
		}
	}
	for name, x := range map[string][]float64{"token_rewards": reward, "values": make([]float64, rows*cols), "advantages": adv} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: x, Type: format.F32}
	}
	return b
}

// A whitening by other moments than those of its tokens is named as one, and what is no line in the advantages is not.
func TestWhiteningEdits(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "1", "gae.lambda": "1"} {
		set = set.With(name, parsed(name, x), "test")
	}
	judge := func(whiten func(x []float64, mask []bool, i int) float64) *stage.Outcome {
		return stage.Judge(stage.Find("gae/advantage"), whitenedStep(whiten), set)
	}
	moments := func(x []float64, mask []bool, cells, correction float64) (mean, std float64) {
		for i, m := range mask {
			if m {
				mean += x[i] / cells
			}
		}
		for i, m := range mask {
			if m {
				std += (x[i] - mean) * (x[i] - mean)
			}
		}
		return mean, math.Sqrt(std / (cells - correction))
	}
	require.Equal(t, check.Pass, judge(func(x []float64, mask []bool, i int) float64 {
		mean, std := moments(x, mask, count(mask), 1)
		return (x[i] - mean) / math.Sqrt(std*std+1e-8)
	}).Verdict)
	byCells := judge(func(x []float64, mask []bool, i int) float64 {
		mean, std := moments(x, mask, float64(len(mask)), 0)
		return (x[i] - mean) / math.Sqrt(std*std+1e-8)
	})
	requireName(t, byCells, "WHITEN-FORM", "the number of all cells")
	require.False(t, Explain(byCells)[0].Hypothesis.Relative, "whiten.mask none has the zeros of padding in its variance")
	requireName(t, judge(func(x []float64, _ []bool, i int) float64 { return (x[i] - 0.3217) / 1.7345 }), "WHITEN-FORM", "another mean")
	requireName(t, judge(func(x []float64, mask []bool, i int) float64 {
		var square float64
		for k, m := range mask {
			square += float64(boolToInt(m)) * x[k] * x[k]
		}
		return x[i] / math.Sqrt(square)
	}), "WHITEN-FORM", "as a vector is normalised")
	requireNoName(t, judge(func(x []float64, _ []bool, i int) float64 { return x[i] + 0.1*x[i]*x[i] }))
	requireName(t, judge(func(x []float64, mask []bool, i int) float64 { // every row by itself, torch.var(unbiased=False)
		const cols = 6
		own := make([]bool, len(mask))
		copy(own[i/cols*cols:], mask[i/cols*cols:(i/cols+1)*cols])
		mean, std := moments(x, own, count(own), 0)
		return (x[i] - mean) / math.Sqrt(std*std+1e-8)
	}), "WHITEN-SCOPE", "every response by itself, with the deviation of n")
	requireName(t, judge(func(x []float64, mask []bool, i int) float64 { // every column by itself
		const cols = 6
		own := make([]bool, len(mask))
		for k := i % cols; k < len(mask); k += cols {
			own[k] = mask[k]
		}
		mean, std := moments(x, own, count(own), 1)
		return (x[i] - mean) / math.Sqrt(std*std+1e-8)
	}), "WHITEN-WRONG-AXIS", "columns")
	requireName(t, judge(func(x []float64, mask []bool, i int) float64 { // the mean is taken along the wrong axis, the deviation is not
		const cols = 6
		own := make([]bool, len(mask))
		copy(own[i/cols*cols:], mask[i/cols*cols:(i/cols+1)*cols])
		mean, _ := moments(x, own, count(own), 0)
		_, std := moments(x, mask, count(mask), 1)
		return (x[i] - mean) / math.Sqrt(std*std+1e-8)
	}), "WHITEN-SCOPE", "every response by itself, for the mean alone")
}

// A whitening over mini-batches by another spread is that of each of them.
func TestWhiteningEditsOfMinibatches(t *testing.T) {
	p, _, err := convention.Lookup("cleanrl@020cf0e")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "1", "gae.lambda": "1", "gae.truncated_bootstrap": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	for _, variance := range []bool{false, true} {
		b := whitenedStep(func(x []float64, _ []bool, i int) float64 { return x[i] })
		half := b.Rows / 2
		b.Files = []dump.FileInfo{{Lo: 0, Hi: half, Cols: b.Cols}, {Lo: half, Hi: b.Rows, Cols: b.Cols}}
		b.Meta.MicroBatches = 2
		for i := range b.Mask {
			b.Mask[i] = true
		}
		for r := range b.Origin {
			b.Origin[r] = dump.Origin{File: r / half, Row: r % half}
		}
		x := b.Token("advantages")
		for i := len(x) - 1; i >= 0; i-- {
			if x[i] = b.Token("token_rewards")[i]; (i+1)%b.Cols != 0 {
				x[i] += x[i+1]
			}
		}
		for _, f := range b.Files {
			part := x[f.Lo*b.Cols : f.Hi*b.Cols]
			n, mean, square := float64(len(part)), 0.0, 0.0
			for _, a := range part {
				mean += a / n
			}
			for _, a := range part {
				square += (a - mean) * (a - mean) / (n - 1)
			}
			if !variance {
				square = math.Sqrt(square)
			}
			for i, a := range part {
				part[i] = float64(float32((a - mean) / (square + 1e-8)))
			}
		}
		o := stage.Judge(stage.Find("gae/advantage"), b, set)
		if !variance {
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
			continue
		}
		requireName(t, o, "WHITEN-FORM", "divided by the variance")
	}
}
