package stage

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// lossFile is a batch of one file of rows times cols tokens, of which row r has lengths[r], with numbers of the file.
func lossFile(cols int, lengths []int, token func(i int) float64, numbers map[string]float64) *dump.Batch {
	rows := len(lengths)
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Files: []dump.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
	x := make([]float64, rows*cols)
	for i := range x {
		b.Mask[i] = i%cols < lengths[i/cols]
		x[i] = token(i)
	}
	b.Tensors["token_loss"] = &dump.Tensor{Data: x, Layout: dump.PerToken, Type: format.F32}
	for name, v := range numbers {
		b.Tensors[name] = &dump.Tensor{Data: []float64{v}, Layout: dump.PerFile, Type: format.F32}
	}
	return b
}

// Two coefficients at once are what the losses of a few files give, and nothing where the files disagree or do not determine them.
func TestCoefficientsAreThoseOfAllFiles(t *testing.T) {
	run := func(n int, loss func(f int, pg, kl, h float64) float64) map[string]float64 {
		var l Losses
		for f := range n {
			pg, kl, h := math.Sin(float64(f)), 0.1+0.05*math.Cos(float64(3*f)), 2+math.Sin(float64(5*f))
			l.Add(lossFile(4, []int{4, 2}, func(i int) float64 { return float64(i) }, map[string]float64{"pg_loss": pg, "kl_loss": kl, "entropy_loss": h, "loss": loss(f, pg, kl, h)}))
		}
		return l.Coefficients()
	}
	require.Equal(t, map[string]float64{"kl.beta": 0.0317, "entropy.coef": 0.007}, run(4, func(_ int, pg, kl, h float64) float64 { return pg + 0.0317*kl - 0.007*h }))
	require.Empty(t, run(3, func(_ int, pg, kl, h float64) float64 { return pg + 0.0317*kl - 0.007*h }))
	require.Empty(t, run(6, func(f int, pg, kl, h float64) float64 { return pg + 0.0317*kl - 0.007*h*float64(1+f%2) }))
	require.Equal(t, map[string]float64{"entropy.coef": 0.007}, run(6, func(_ int, pg, kl, h float64) float64 { return pg + kl - 0.007*h }), "the KL was dumped as it is added")
}

// The coefficient of an entropy bonus that is added, where it should be subtracted, is its size; of what is no entropy, but what is added of it, there is none.
func TestCoefficientsOfWrongSign(t *testing.T) {
	run := func(sign float64) map[string]float64 {
		var l Losses
		for f := range 5 {
			pg, kl, h := math.Sin(float64(f)), 0.1+0.05*math.Cos(float64(3*f)), 2+math.Sin(float64(5*f))
			l.Add(lossFile(4, []int{4, 2}, func(i int) float64 { return float64(i) }, map[string]float64{"pg_loss": pg, "kl_loss": kl, "entropy_loss": sign * h, "loss": pg + 0.03*kl + sign*0.007*h}))
		}
		return l.Coefficients()
	}
	require.Equal(t, map[string]float64{"kl.beta": 0.03, "entropy.coef": 0.007}, run(1))
	require.Equal(t, map[string]float64{"kl.beta": 0.03}, run(-1))
}

// A term that the files have of their tokens alone stands in the loss beside those that they have.
func TestCoefficientsOfTokens(t *testing.T) {
	run := func(of func(f int, mean, rows float64) float64) map[string]float64 {
		var l Losses
		for f := range 5 {
			lengths := []int{1 + f%4, 2, 3}
			h := func(i int) float64 { return 2 + math.Sin(float64(7*i+f)) }
			var sum, n, rows float64
			for r, m := range lengths {
				var row float64
				for c := range m {
					row += h(r*4 + c)
				}
				sum, n, rows = sum+row, n+float64(m), rows+row/float64(m)/3
			}
			pg, v := math.Sin(float64(f)), 1+math.Cos(float64(3*f))
			b := lossFile(4, lengths, h, map[string]float64{"pg_loss": pg, "value_loss": v, "loss": pg + 0.5*v + of(f, sum/n, rows)})
			b.Tensors["entropy"] = b.Tensors["token_loss"]
			l.Add(b)
		}
		return l.Coefficients()
	}
	require.Equal(t, map[string]float64{"value.coef": 0.5, "entropy.coef": 0.003}, run(func(_ int, h, _ float64) float64 { return -0.003 * h }))
	require.Equal(t, map[string]float64{"value.coef": 0.5, "entropy.coef": 0.003}, run(func(_ int, _, h float64) float64 { return -0.003 * h }), "means of rows")
	require.Equal(t, map[string]float64{"value.coef": 0.5}, run(func(_ int, _, _ float64) float64 { return 0 }))
	require.Empty(t, run(func(f int, h, _ float64) float64 { return -0.003 * h * float64(1+f%2) }))
}

// A term shares what its tokens are divided by with the policy loss: of micro-batches of as many rows a mean over each and over all differ by a factor.
func TestCoefficientsOfTokensByTheDenominatorOfTheLoss(t *testing.T) {
	for _, constant := range []float64{0, 7} { // that sums of tokens with importance weights are divided by beside the rows of the file; 0: means over the rows of the step
		var l Losses
		for step := range 4 {
			const cols, per = 4, 2
			of := func(i int) float64 { return math.Sin(float64(7*i + step)) }
			entropy := func(i int) float64 { return 2 + math.Cos(float64(5*i-step)) }
			lengths := []int{1 + step%4, 2, 3, 1 + step%2}
			b := lossFile(cols, lengths, of, nil)
			b.Files = []dump.FileInfo{{Name: "f", Hi: per, Cols: cols}, {Name: "g", Lo: per, Hi: 2 * per, Cols: cols, MicroBatch: 1}}
			h, w, pg, loss := make([]float64, len(b.Mask)), make([]float64, len(b.Mask)), make([]float64, 2), make([]float64, 2)
			for i, m := range b.Mask {
				if r := i / cols; m {
					h[i] = entropy(i)
					share := 1 / float64(lengths[r]*len(lengths))
					if w[i] = 1; constant > 0 {
						share, w[i] = 1/(per*constant), 1+0.5*math.Cos(float64(3*i))
					}
					pg[r/per] += w[i] * of(i) * share
					loss[r/per] += (w[i]*of(i) - 0.003*h[i]) * share
				}
			}
			b.Tensors["entropy"] = &dump.Tensor{Data: h, Layout: dump.PerToken, Type: format.F32}
			b.Tensors["is_weights"] = &dump.Tensor{Data: w, Layout: dump.PerToken, Type: format.F32}
			b.Tensors["pg_loss"] = &dump.Tensor{Data: pg, Layout: dump.PerFile, Type: format.F32}
			b.Tensors["loss"] = &dump.Tensor{Data: loss, Layout: dump.PerFile, Type: format.F32}
			l.Add(b)
		}
		require.Equal(t, map[string]float64{"entropy.coef": 0.003}, l.Coefficients(), "%v", constant)
	}
}

// A constant that sums over tokens are divided by is found where rows and widths do not explain it.
func TestConstantsAreThoseOfAllFiles(t *testing.T) {
	run := func(cols int, by func(rows, tokens float64) float64) float64 {
		var l Losses
		for f := range 4 {
			lengths := []int{1 + f, 2, 3}
			token := func(i int) float64 { return math.Sin(float64(7*i + f)) }
			var sum, n float64
			for r, m := range lengths {
				for c := range m {
					sum += token(r*cols + c)
					n++
				}
			}
			l.Add(lossFile(cols, lengths, token, map[string]float64{"loss": sum / by(3, n)}))
		}
		return l.Constant()
	}
	for _, c := range []float64{1, 7, 256} {
		require.Equal(t, c, run(5, func(rows, _ float64) float64 { return rows * c }), fmt.Sprint(c))
	}
	require.Zero(t, run(5, func(rows, _ float64) float64 { return rows * 5 }), "the width of the files")
	require.Zero(t, run(5, func(_, tokens float64) float64 { return tokens }), "a mean over tokens")
}

// Whole losses are of files that have their loss and the losses of their tokens, no policy loss beside them, and every tensor that they declare.
func TestFilesOfWholeLosses(t *testing.T) {
	for name, change := range map[string]func(b *dump.Batch){
		"":                        func(*dump.Batch) {},
		"without its loss":        func(b *dump.Batch) { delete(b.Tensors, "loss") },
		"without token losses":    func(b *dump.Batch) { delete(b.Tensors, "token_loss") },
		"with its policy loss":    func(b *dump.Batch) { b.Tensors["pg_loss"] = b.Tensors["loss"] },
		"with a file that is not": func(b *dump.Batch) { b.Missing = []string{"kl"} },
	} {
		b := lossFile(4, []int{4, 2}, func(i int) float64 { return float64(i) }, map[string]float64{"loss": 1})
		change(b)
		var w wholes
		w.add(b, true)
		require.Equal(t, name != "", w.no, name)
	}
}

// A constant length that nobody declares is read off the loss where the gradient cannot be predicted, and is none without either.
func TestConstantLengthOfALoss(t *testing.T) {
	s := set(t, "agg.kind=seq_sum_const agg.denominator=micro agg.div_batch=true agg.empty_rows=counted agg.div_ga=false entropy.coef=0 kl.place=none loss.kind=ppo")
	const length = 300
	token := func(i int) float64 { return 1 + float64(i) }
	b := lossFile(4, []int{4, 2}, token, map[string]float64{"loss": (1 + 2 + 3 + 4 + 5 + 6) / 2. / length})
	b.Origin, b.Meta.MicroBatches, b.Meta.WorldSize = make([]dump.Origin, 2), 1, 1
	require.Equal(t, float64(length), LengthConstant(b, s))
	b.Tensors["dlogp"] = &dump.Tensor{Data: make([]float64, 8), Layout: dump.PerToken, Type: format.F32} // without log-probs it has no prediction
	require.Equal(t, float64(length), LengthConstant(b, s))
	delete(b.Tensors, "loss")
	require.Zero(t, LengthConstant(b, s))
}

// One number that all sums over tokens are divided by is found, and what is a mean over tokens, over cells or over rows is none.
func TestDivisorsAreThoseOfAllFiles(t *testing.T) {
	run := func(by func(rows, tokens, cells float64) float64) float64 {
		var l Losses
		for f := range 5 {
			lengths := []int{1 + f, 2, 3}
			token := func(i int) float64 { return 1 + math.Sin(float64(7*i+f)) }
			var sum, n float64
			for r, m := range lengths {
				for c := range m {
					sum += token(r*5 + c)
					n++
				}
			}
			l.Add(lossFile(5, lengths, token, map[string]float64{"loss": sum / by(3, n, 15)}))
		}
		return l.Divisor()
	}
	require.Equal(t, 500.0, run(func(_, _, _ float64) float64 { return 500 }))
	require.Zero(t, run(func(_, tokens, _ float64) float64 { return tokens }))
	require.Zero(t, run(func(_, _, cells float64) float64 { return cells }), "padding is counted")
	require.Zero(t, run(func(_, _, _ float64) float64 { return 12.3 }), "nobody writes it")
}
