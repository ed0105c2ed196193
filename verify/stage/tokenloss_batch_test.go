package stage_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// trainer draws batches and computes losses in float32, in an order of its own: it adds from the last term to the first, takes
// exponentials that are off by up to an ulp, and differentiates by dual numbers. Nothing in it comes from the reference.
type trainer struct {
	r *rand.Rand

	ranks, micro int
	b            *dump.Batch
}

func newTrainer(seed uint64) *trainer {
	t := &trainer{r: rand.New(rand.NewPCG(seed, 7))}
	t.ranks, t.micro = 1+t.r.IntN(2), 1+t.r.IntN(3)
	wide := 1 + t.r.IntN(24)
	b := &dump.Batch{Tensors: map[string]*dump.Tensor{}}
	b.Meta = dump.Meta{Framework: "test", Algorithm: "grpo", WorldSize: t.ranks, MicroBatches: t.micro, DLogpScale: 1, ComputeDType: "float32", ScalarsScope: "optimizer_step"}
	includes := true
	b.Meta.TokenLossIncludesKL = &includes
	for rank := range t.ranks {
		for m := range t.micro {
			cols, rows := 1+t.r.IntN(wide), 1+t.r.IntN(4)
			b.Files = append(b.Files, dump.FileInfo{Name: "file", Rank: rank, MicroBatch: m, Lo: b.Rows, Hi: b.Rows + rows, Cols: cols})
			for i := range rows {
				b.Origin = append(b.Origin, dump.Origin{File: len(b.Files) - 1, Row: i, Cols: cols})
			}
			b.Rows += rows
			b.Cols = max(b.Cols, cols)
		}
	}
	b.Mask = make([]bool, b.Rows*b.Cols)
	t.b = b
	holes := t.r.IntN(2) == 0
	for r := range b.Rows {
		n := t.r.IntN(b.Origin[r].Cols + 1) // 0 now and then: an empty row
		for i := range n {
			b.Mask[r*b.Cols+i] = !holes || t.r.IntN(4) > 0
		}
	}
	if !anyTrue(b.Mask) {
		b.Mask[0] = true
	}
	return t
}

func anyTrue(mask []bool) bool {
	for _, m := range mask {
		if m {
			return true
		}
	}
	return false
}

func round32(x float64) float64 { return float64(float32(x)) }

// grid adds a per-token tensor of float32 values; cells that were filled up hold 0.
func (t *trainer) grid(name string, draw func(i int) float64) []float64 {
	x := make([]float64, t.b.Rows*t.b.Cols)
	for i := range x {
		if i%t.b.Cols < t.b.Origin[i/t.b.Cols].Cols {
			x[i] = round32(draw(i))
		}
	}
	t.put(name, x)
	return x
}

func (t *trainer) put(name string, x []float64) {
	t.b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{t.b.Rows, t.b.Cols}, Data: x, Type: format.F32}
}

func (t *trainer) perRow(name string, draw func(r int) float64) []float64 {
	x := make([]float64, t.b.Rows)
	for r := range x {
		x[r] = round32(draw(r))
	}
	t.b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerRow, Width: 1, Shape: []int{t.b.Rows}, Data: x, Type: format.F32}
	return x
}

func (t *trainer) perFile(name string, x []float64) {
	t.b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerFile, Width: 1, Shape: []int{len(x)}, Data: x, Type: format.F32}
}

// logprobs draws the log-probs and advantages of a batch whose policy has moved by about drift nats.
func (t *trainer) logprobs(drift float64) {
	old := t.grid("logp_old", func(int) float64 { return -t.r.ExpFloat64() })
	t.grid("logp_new", func(i int) float64 { return old[i] + drift*t.r.NormFloat64() })
	t.grid("logp_ref", func(i int) float64 { return old[i] + drift*t.r.NormFloat64() })
	t.grid("logp_gen", func(i int) float64 { return old[i] + drift/4*t.r.NormFloat64() })
	adv := make([]float64, t.b.Rows)
	for r := range adv {
		adv[r] = t.r.NormFloat64()
	}
	if t.r.IntN(2) == 0 {
		t.grid("advantages", func(i int) float64 { return adv[i/t.b.Cols] })
	} else {
		t.grid("advantages", func(int) float64 { return t.r.NormFloat64() })
	}
}

// exp32 is an exponential with an error of up to an ulp and a half.
func (t *trainer) exp32(x float32) float32 {
	y := float32(math.Exp(float64(x)))
	if x != 0 && t.r.IntN(3) == 0 {
		y = math.Nextafter32(y, float32(math.Inf(2*t.r.IntN(2)-1)))
	}
	return y
}

// sum32 adds from the last to the first.
func sum32(x []float32) float32 {
	var s float32
	for i := len(x) - 1; i >= 0; i-- {
		s += x[i]
	}
	return s
}

// options returns a set of "name=value" options.
func options(t require.TestingT, list ...string) *convention.Set {
	set := &convention.Set{}
	for _, s := range list {
		name, text, _ := strings.Cut(s, "=")
		v, err := convention.Parse(name, text)
		require.NoError(t, err)
		set = set.With(name, v, "test")
	}
	return set
}

// judged32 judges the output of a check in float32.
func judged32(t require.TestingT, id string, b *dump.Batch, set *convention.Set) *stage.Outcome {
	ch := stage.Find(id)
	require.NotNil(t, ch, id)
	return stage.JudgeAs(ch, b, set, stage.Arithmetic{Unit: tol.U32})
}

// ratioLog keeps the largest error in units of the bound by family: a bound that is never approached verifies nothing.
type ratioLog map[string]float64

func (l ratioLog) pass(t require.TestingT, family string, o *stage.Outcome, seed int) {
	require.Equal(t, check.Pass, o.Verdict, "%s, seed %d: %s; worst %+v", family, seed, o.Lacking(), o.Tally)
	l[family] = max(l[family], o.Tally.Worst.Ratio)
}

func (l ratioLog) report(t *testing.T) {
	var most float64
	for family, r := range l {
		t.Logf("%-40s largest error/bound %.3f", family, r)
		most = max(most, r)
	}
	require.GreaterOrEqual(t, most, 0.1)
}

// planted demands that an error of a few bounds at one judged element is seen.
func planted(t require.TestingT, id, name string, b *dump.Batch, set *convention.Set, at int) {
	clean := judged32(t, id, b, set)
	x := append([]float64(nil), b.Tensors[name].Data...)
	x[at] += 4 * (clean.Pred.Bound[at] + tol.Storage(clean.Pred.Want[at], tol.U32, tol.Eta32))
	require.Equal(t, check.Fail, judged32(t, id, b.With(name, x), set).Verdict, "%s: element %d of %s", id, at, name)
}

// judgedRules judges a check as the command does.
func judgedRules(t require.TestingT, id string, b *dump.Batch, set *convention.Set) *stage.Outcome {
	ch := stage.Find(id)
	require.NotNil(t, ch, id)
	return stage.Judge(ch, b, set)
}
