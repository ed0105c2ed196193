package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// whiten32 whitens x in float32, over the cells counted, as the masked functions of the frameworks do.
func whiten32(r *rand.Rand, x []float32, count []bool, ddof int, place string, eps float32, shift string) []float32 {
	var cells []float32
	for i, v := range x {
		if count[i] {
			cells = append(cells, v)
		}
	}
	n := float32(len(cells))
	sum := sums32(r)
	mean := sum(cells) / n
	squares := make([]float32, len(cells))
	for i, v := range cells {
		squares[i] = (v - mean) * (v - mean)
	}
	variance := sum(squares) / n
	if ddof == 1 {
		variance *= n / (n - 1)
	}
	var s float32
	switch place {
	case "inside_sqrt":
		s = blur(r, float32(1/math.Sqrt(float64(variance+eps))))
	case "floor_var":
		s = blur(r, float32(1/math.Sqrt(float64(max(variance, eps)))))
	case "add_std":
		s = 1 / (float32(math.Sqrt(float64(variance))) + eps)
	}
	y := make([]float32, len(x))
	for i, v := range x {
		switch shift {
		case "true":
			y[i] = (v - mean) * s
		case "false_add_back":
			y[i] = (v-mean)*s + mean
		case "false_plain":
			y[i] = v * s
		}
	}
	return y
}

var statFamilies = map[string]func(r *rand.Rand) float64{
	"normal":   func(r *rand.Rand) float64 { return r.NormFloat64() },
	"binary":   func(r *rand.Rand) float64 { return float64(r.IntN(2)) },
	"offset":   func(r *rand.Rand) float64 { return 1000 + r.NormFloat64() },
	"tiny":     func(r *rand.Rand) float64 { return 0.5 + 1e-6*r.NormFloat64() },
	"constant": func(*rand.Rand) float64 { return 0.95 },
	"ones":     func(*rand.Rand) float64 { return 1 },
	"heavy":    func(r *rand.Rand) float64 { return math.Exp(4 * r.NormFloat64()) },
}

func TestWhitenedAdvantageBound(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 2))
	w := worst{}
	for _, family := range sorted(statFamilies) {
		draw := statFamilies[family]
		for _, place := range []string{"inside_sqrt", "floor_var", "add_std"} {
			for _, shift := range []string{"true", "false_add_back", "false_plain"} {
				for _, kind := range []string{"response", "length", "none"} {
					for ddof, d := range []string{"0", "1"} {
						s := set(t, "adv.kind=gae rewards.whiten=no gae.hole=none gae.gamma=1 gae.lambda=0 gae.value_mask=response whiten.scope=global whiten.eps=1e-8 whiten.eps_place="+place+" whiten.shift_mean="+shift+" whiten.ddof="+d+" whiten.mask="+kind)
						for range 6 {
							g := randomGrid(r, 2+r.IntN(4), 2+r.IntN(12), true)
							// λ = 0 and V = 0: the raw advantages are the rewards.
							x := narrow(g.fill("token_rewards", dump.PerToken, func() float64 { return draw(r) }))
							g.token("values", make([]float64, len(x))...)
							c := NewCase(g.Batch, s, tol.U32)
							count := g.Mask
							switch kind {
							case "length":
								count = make([]bool, len(x))
								for i := range count {
									count[i] = i%g.Cols <= c.last(i/g.Cols)
								}
							case "none":
								count = c.realCells()
							}
							n := 0
							for _, m := range count {
								if m {
									n++
								}
							}
							if n < 2 {
								continue
							}
							a := make([]float64, len(x))
							for i, v := range whiten32(r, x, count, ddof, place, 1e-8, shift) {
								a[i] = float64(v)
							}
							g.token("advantages", a...)
							if o := Judge(Find("gae/advantage"), g.Batch, s); o.Tally != nil && o.Tally.N == 0 {
								continue
							}
							w.add(t, family, "gae/advantage", g.Batch, s)
						}
					}
				}
			}
		}
	}
	w.tight(t)
}

func whitened(t testing.TB, text string) *convention.Set {
	return set(t, "adv.kind=gae rewards.whiten=no gae.hole=carry gae.gamma=1 gae.lambda=0 whiten.shift_mean=true whiten.mask=response whiten.ddof=1 whiten.eps_place=inside_sqrt whiten.eps=1e-8 returns.before_whiten=true "+text)
}

// ddof, scope and mask of whitening tell programs apart.
func TestWhiteningFindsFaults(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	g := newGrid(4, 4, 3, 2, 4)
	g.Files = []dump.FileInfo{{Hi: 2, Cols: 4}, {Lo: 2, Hi: 4, Cols: 4, Rank: 1}}
	g.Origin[2].File, g.Origin[3].File = 1, 1
	x := narrow(g.fill("token_rewards", dump.PerToken, r.NormFloat64))
	g.token("values", make([]float64, 16)...)
	put := func(y []float32) *dump.Batch {
		a := make([]float64, len(y))
		for i, v := range y {
			a[i] = float64(v)
		}
		return g.token("advantages", a...).Batch
	}
	global := whiten32(r, x, g.Mask, 1, "inside_sqrt", 1e-8, "true")
	byRank := append(whiten32(r, x[:8], g.Mask[:8], 1, "inside_sqrt", 1e-8, "true"), whiten32(r, x[8:], g.Mask[8:], 1, "inside_sqrt", 1e-8, "true")...)
	var byRow []float32
	for i := range 4 {
		byRow = append(byRow, whiten32(r, x[4*i:4*i+4], g.Mask[4*i:4*i+4], 1, "inside_sqrt", 1e-8, "true")...)
	}
	for scope, y := range map[string][]float32{"global": global, "local_batch": byRank, "minibatch": byRank, "row": byRow} {
		require.Equal(t, check.Pass, Judge(Find("gae/advantage"), put(y), whitened(t, "whiten.scope="+scope)).Verdict, scope)
		require.Equal(t, check.Pass, Judge(Find("advantage/moments"), g.Batch, whitened(t, "whiten.scope="+scope)).Verdict, scope)
	}
	fails(t, "gae/advantage", put(byRank), whitened(t, "whiten.scope=global"))
	fails(t, "gae/advantage", put(global), whitened(t, "whiten.scope=row"))
	fails(t, "gae/advantage", put(whiten32(r, x, g.Mask, 0, "inside_sqrt", 1e-8, "true")), whitened(t, "whiten.scope=global"))
	all := make([]bool, 16)
	for i := range all {
		all[i] = true
	}
	fails(t, "gae/advantage", put(whiten32(r, x, all, 1, "inside_sqrt", 1e-8, "true")), whitened(t, "whiten.scope=global"))
	o := Judge(Find("advantage/moments"), g.Batch, whitened(t, "whiten.scope=global"))
	require.Equal(t, check.Warn, o.Verdict)
	open := whitened(t, "whiten.scope=global").With("whiten.shift_mean", convention.Value{}, "test")
	require.Equal(t, check.Skip, Judge(Find("advantage/moments"), g.Batch, open).Verdict, "whether the mean is subtracted is searched")

	// A mini-batch is a file, or what a rank adds up to a step, as its advantages show; another step is another one.
	two := *put(byRank)
	two.Files = []dump.FileInfo{g.Files[0], g.Files[1]}
	two.Files[1].Rank, two.Files[1].MicroBatch = two.Files[0].Rank, 1
	require.Equal(t, check.Pass, Judge(Find("gae/advantage"), &two, whitened(t, "whiten.scope=minibatch")).Verdict)
	require.Equal(t, []assign{word("whiten.scope", "minibatch"), word("whiten.mask", "response"), word("whiten.ddof", "1"), word("whiten.shift_mean", "true")}, ofUnitDeviation(&two))
	put(global)
	require.Equal(t, check.Pass, Judge(Find("gae/advantage"), &two, whitened(t, "whiten.scope=minibatch")).Verdict)
	require.Equal(t, word("whiten.scope", "global"), ofUnitDeviation(&two)[0], "all rows of a step")
	two.Files[1].Step++
	require.Equal(t, check.Fail, Judge(Find("gae/advantage"), &two, whitened(t, "whiten.scope=minibatch")).Verdict)
	put(byRank)

	// Statistics over rows that were not dumped decide nothing.
	g.Missing = []string{"rank 2"}
	lacks(t, "gae/advantage", put(byRank), whitened(t, "whiten.scope=global"), "all files of the step")
	require.Equal(t, check.Pass, Judge(Find("gae/advantage"), g.Batch, whitened(t, "whiten.scope=minibatch")).Verdict)
	g.Missing = nil
	lacks(t, "gae/advantage", g.Batch, whitened(t, "whiten.scope=global").WithFact("num_mini_batches", 4.0), "other steps")

	// Whitened returns, where they are taken after.
	v := g.fill("values", dump.PerToken, r.NormFloat64)
	y := make([]float64, 16)
	for i := range y {
		y[i] = float64(f32(g.Token("advantages")[i]) + f32(v[i]))
	}
	after := whitened(t, "whiten.scope=global").With("returns.before_whiten", mustParse(t, "returns.before_whiten", "false"), "test")
	require.Equal(t, check.Pass, Judge(Find("gae/returns"), g.token("returns", y...).Batch, after).Verdict)
	fails(t, "gae/returns", g.Batch, whitened(t, "whiten.scope=global"))
}

func TestWhiteningOfOne(t *testing.T) {
	g := newGrid(1, 1).token("token_rewards", 2).token("values", 0).token("advantages", math.NaN())
	for rule, a := range map[string]float64{"nan": math.NaN(), "zero": 0} {
		g.token("advantages", a)
		o := Judge(Find("gae/advantage"), g.Batch, whitened(t, "whiten.scope=global whiten.single="+rule))
		require.Equal(t, check.Pass, o.Verdict, rule)
	}
	lacks(t, "gae/advantage", g.Batch, whitened(t, "whiten.scope=global whiten.single=error"), "raises an exception")
	lacks(t, "gae/advantage", g.Batch, whitened(t, "whiten.scope=global"), "whiten.single")
}

func TestExactSums(t *testing.T) {
	require.True(t, exactSum([]float64{0, 1, 1, 0.5, 3}, tol.U32))
	require.False(t, exactSum([]float64{1, 0.95}, tol.U32))
	require.False(t, exactSum([]float64{1, 0x1p30}, tol.U32))
	require.True(t, exactSum([]float64{1, 0x1p30}, tol.U64))
	require.True(t, exactSum(nil, tol.U32))
	require.False(t, exactSum([]float64{math.NaN()}, tol.U32))

	require.False(t, fewEqual([]float64{1.1, 1.1, 1.1}))
	require.False(t, fewEqual([]float64{1.1, 1.1, 1.1, 1.2}))
	r := rand.New(rand.NewPCG(8, 8))
	for range 100_000 {
		x := math.Float32frombits(0x3f800000 + r.Uint32N(1<<23))
		require.Equal(t, 2*x, x+x)
		require.Equal(t, 4*x, x+x+x+x)
		require.Equal(t, 4*x, x+(x+(x+x)))
		require.Equal(t, 4*x, (x+x)+(x+x))
	}
	m := momentsOf([]float64{1, 1, 1, 1, 1, 1, 1, 1}, nil, 1, 0, tol.U32)
	require.Equal(t, moments{n: 8, mean: 1}, m, "a group of equal 0/1 rewards has no error, so that its advantage 0 is decided")
}
