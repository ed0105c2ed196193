package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// ppoBatch is a rollout of 12 rows of up to 16 tokens in float32, of which shape makes rewards, and recurse the advantages of a row.
func ppoBatch(seed uint64, rewards func(row int, score float64, kl []float64, last int) []float64, recurse func(r, v []float64) []float64) *dump.Batch {
	const rows, cols = 12, 16
	rng := rand.New(rand.NewPCG(seed, 3))
	single := func(x float64) float64 { return float64(float32(x)) }
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Name: "f", Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
	b.Meta.Step, b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1, 1
	x := map[string][]float64{}
	for _, name := range []string{"token_rewards", "values", "returns", "kl", "raw"} {
		x[name] = make([]float64, rows*cols)
	}
	score, ids := make([]float64, rows), make([]float64, rows*cols)
	for row := range rows {
		last := 5 + rng.IntN(8)
		if row%4 == 3 {
			last = cols - 1
		}
		kl, v := make([]float64, last+1), make([]float64, last+1)
		for t := range kl {
			b.Mask[row*cols+t] = true
			kl[t], v[t] = single(0.2*rng.NormFloat64()), single(rng.NormFloat64())
			ids[row*cols+t] = 5 + float64(rng.IntN(20))
		}
		if last < cols-1 {
			ids[row*cols+last] = 2
		}
		score[row] = single(1 + rng.NormFloat64())
		r := rewards(row, score[row], kl, last)
		for t := range r {
			r[t] = single(r[t])
		}
		a := recurse(r, v)
		for t := range r {
			i := row*cols + t
			x["token_rewards"][i], x["values"][i], x["kl"][i], x["raw"][i], x["returns"][i] = r[t], v[t], kl[t], a[t], single(a[t]+v[t])
		}
	}
	for name, data := range x {
		b.Tensors[name] = &dump.Tensor{Data: data, Layout: dump.PerToken, Type: format.F32, Shape: []int{rows, cols}}
	}
	b.Tensors["response_ids"] = &dump.Tensor{Data: ids, Layout: dump.PerToken, Type: format.F32, Shape: []int{rows, cols}}
	b.Tensors["scores"] = &dump.Tensor{Data: score, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{rows}}
	return b
}

// gaeOf is the recursion of Schulman et al. 2016, Eq. 16, for a row that ends.
func gaeOf(gamma, lambda float64) func(r, v []float64) []float64 {
	return func(r, v []float64) []float64 {
		a := make([]float64, len(r))
		next, ahead := 0.0, 0.0
		for t := len(r) - 1; t >= 0; t-- {
			a[t] = r[t] + gamma*ahead - v[t] + gamma*lambda*next
			next, ahead = a[t], v[t]
		}
		return a
	}
}

func rewardsOf(beta, penalty float64) func(row int, score float64, kl []float64, last int) []float64 {
	return func(_ int, score float64, kl []float64, last int) []float64 {
		r := make([]float64, len(kl))
		for t, k := range kl {
			r[t] = -beta * k
		}
		if last == 15 {
			score -= penalty
		}
		r[last] += score
		return r
	}
}

// white returns (x − μ)/σ over the mask, σ² over n − ddof.
func white(b *dump.Batch, x []float64, ddof float64) []float64 {
	var n, sum, ss float64
	for i, m := range b.Mask {
		if m {
			n, sum = n+1, sum+x[i]
		}
	}
	for i, m := range b.Mask {
		if m {
			ss += (x[i] - sum/n) * (x[i] - sum/n)
		}
	}
	y := make([]float64, len(x))
	for i, m := range b.Mask {
		if m {
			y[i] = float64(float32((x[i] - sum/n) / math.Sqrt(ss/(n-ddof)+1e-8)))
		}
	}
	return y
}

func texts(list []Change) map[string]string {
	m := map[string]string{}
	for _, c := range list {
		m[c.Option] = c.To.String()
	}
	return m
}

// γ and λ of no table are what returns, or whitened advantages alone, give; the search completes the rest.
func TestDecaysAreShown(t *testing.T) {
	for seed := range uint64(4) {
		for _, returns := range []bool{true, false} {
			b := ppoBatch(seed, rewardsOf(0.03, 0), gaeOf(0.967, 0.913))
			adv := white(b, b.Token("raw"), 1)
			b = b.Without("raw")
			b.Tensors["advantages"] = &dump.Tensor{Data: adv, Layout: dump.PerToken, Type: format.F32, Shape: []int{b.Rows, b.Cols}}
			if !returns {
				b = b.Without("returns")
			}
			ch := Find("gae/advantage")
			got := texts(Shown(ch, b, &convention.Set{})[0])
			require.Equal(t, "0.967", got["gae.gamma"])
			require.Equal(t, "0.913", got["gae.lambda"])
			fits, _ := Complete(ch, b, &convention.Set{})
			require.NotEmpty(t, fits)
			require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
			require.Equal(t, "1", texts(fits[0].Changes)["whiten.ddof"])
		}
	}
}

// Advantages that every mini-batch whitens alone are a line of what returns exceed values by in each file, and not in all.
func TestWhiteningOfMiniBatchesIsShown(t *testing.T) {
	for seed := range uint64(4) {
		b := ppoBatch(seed, rewardsOf(0.03, 0), gaeOf(0.967, 0.913))
		b.Files = []dump.FileInfo{{Name: "f", Hi: 5, Cols: b.Cols}, {Name: "g", Lo: 5, Hi: b.Rows, Cols: b.Cols, MicroBatch: 1}}
		b.Meta.MicroBatches = 2
		adv := make([]float64, len(b.Mask))
		for f, file := range b.Files {
			own := *b
			own.Mask = make([]bool, len(b.Mask))
			copy(own.Mask[file.Lo*b.Cols:file.Hi*b.Cols], b.Mask[file.Lo*b.Cols:file.Hi*b.Cols])
			for i, x := range white(&own, b.Token("raw"), 1) {
				adv[i] += x
			}
			for r := file.Lo; r < file.Hi; r++ {
				b.Origin[r].File = f
			}
		}
		b = b.Without("raw")
		b.Tensors["advantages"] = &dump.Tensor{Data: adv, Layout: dump.PerToken, Type: format.F32, Shape: []int{b.Rows, b.Cols}}
		require.Equal(t, "minibatch", texts(Shown(Find("gae/advantage"), b, &convention.Set{})[0])["whiten.scope"])
		fits, _ := Complete(Find("gae/advantage"), b, &convention.Set{})
		require.NotEmpty(t, fits)
		require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
		require.Equal(t, "minibatch", texts(fits[0].Changes)["whiten.scope"])
	}
}

// A declared γ is not searched for, and what no γ and λ give is proposed by none that is right.
func TestDecaysOfOtherFormulas(t *testing.T) {
	b := ppoBatch(1, rewardsOf(0.03, 0), gaeOf(0.967, 0.913))
	gamma, err := convention.Parse("gae.gamma", "0.9")
	require.NoError(t, err)
	require.Empty(t, Shown(Find("gae/returns"), b, (&convention.Set{}).With("gae.gamma", gamma, "the dump")))
	wrong := ppoBatch(1, rewardsOf(0.03, 0), func(r, v []float64) []float64 {
		a := gaeOf(0.967, 0.913)(r, v)
		for i := range a {
			a[i] += 0.05 * math.Sin(float64(17*i))
		}
		return a
	})
	fits, _ := Complete(Find("gae/returns"), wrong, &convention.Set{})
	for _, f := range fits {
		require.NotEqual(t, check.Pass, f.Outcome.Verdict)
	}
}

// movedRight returns a batch on a wider grid on which every response begins at a column of its own, as on one that holds the prompts too.
func movedRight(b *dump.Batch, by func(row int) int, more int) *dump.Batch {
	m := *b
	m.Cols += more
	m.Mask, m.Tensors = make([]bool, m.Rows*m.Cols), map[string]*dump.Tensor{}
	m.Files = []dump.FileInfo{{Name: "f", Hi: m.Rows, Cols: m.Cols}}
	to := func(i int) int { return i/b.Cols*m.Cols + i%b.Cols + by(i/b.Cols) }
	for i, in := range b.Mask {
		m.Mask[to(i)] = in
	}
	for name, x := range b.Tensors {
		y := *x
		if m.Tensors[name] = &y; x.Layout == dump.PerToken {
			y.Data, y.Shape = make([]float64, len(m.Mask)), []int{m.Rows, m.Cols}
			for i, v := range x.Data {
				y.Data[to(i)] = v
			}
		}
	}
	return &m
}

// Responses have an end by their lengths, wherever they begin, and a score that is replaced shows as one that a penalty is subtracted from.
func TestEndsOfResponsesThatBeginAnywhere(t *testing.T) {
	replaced := func(_ int, score float64, kl []float64, last int) []float64 {
		r := make([]float64, len(kl))
		if r[last] = score; last == 15 {
			r[last] = -1
		}
		return r
	}
	for name, k := range map[string]struct {
		rewards       func(row int, score float64, kl []float64, last int) []float64
		rule, penalty string
	}{"subtracted": {rewardsOf(0.0317, 0.43), "subtract", "0.43"}, "replaced": {replaced, "replace", "-1"}} {
		whole := ppoBatch(3, k.rewards, gaeOf(1, 1))
		for by, b := range map[string]*dump.Batch{"left": whole, "apart": movedRight(whole, func(row int) int { return 5 * row % 8 }, 8),
			"right": movedRight(whole, func(row int) int { return 15 - NewCase(whole, &convention.Set{}, 0).last(row) }, 0)} {
			id, ok := EndToken(b)
			require.True(t, ok, by)
			require.Equal(t, 2, id)
			set := (&convention.Set{}).WithFact("eos_token_id", float64(id))
			shown := Shown(Find("reward/token"), b, set)
			require.NotEmpty(t, shown, "%s, %s", name, by)
			require.Equal(t, k.rule, texts(shown[0])["eos.rule"], "%s, %s", name, by)
			require.Equal(t, k.penalty, texts(shown[0])["eos.penalty"], "%s, %s", name, by)
			fits, _ := Complete(Find("reward/token"), b, set)
			require.NotEmpty(t, fits)
			require.Equal(t, check.Pass, fits[0].Outcome.Verdict, "%s, %s", name, by)
		}
	}
}

// The coefficient of the KL and the penalty for responses without an end are what rewards give, whitened or not.
func TestRewardTermsAreShown(t *testing.T) {
	for seed := range uint64(4) {
		b := ppoBatch(seed, rewardsOf(0.0317, 0.43), gaeOf(1, 1))
		id, ok := EndToken(b)
		require.True(t, ok)
		require.Equal(t, 2, id)
		set := (&convention.Set{}).WithFact("eos_token_id", float64(id))
		got := texts(Shown(Find("reward/token"), b, set)[0])
		require.Equal(t, "0.0317", got["kl.beta"])
		require.Equal(t, "0.43", got["eos.penalty"])
		fits, _ := Complete(Find("reward/token"), b, set)
		require.NotEmpty(t, fits)
		require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
		require.False(t, WhitenedRewards(b))

		r, y := b.Token("token_rewards"), white(b, b.Token("token_rewards"), 1)
		var n, sum float64
		for i, m := range b.Mask {
			if m {
				n, sum = n+1, sum+r[i]
			}
		}
		for i, m := range b.Mask {
			if m {
				y[i] += sum / n
			}
		}
		copy(r, y)
		require.True(t, WhitenedRewards(b))
		got = texts(Shown(Find("reward/token"), b, set)[0])
		require.Equal(t, "0.0317", got["kl.beta"])
		require.Equal(t, "0.43", got["eos.penalty"])
	}
}

// A discount is what whitened returns give.
func TestDiscountsAreShown(t *testing.T) {
	b := ppoBatch(3, rewardsOf(0.03, 0), func(r, _ []float64) []float64 {
		g := make([]float64, len(r))
		sum := 0.0
		for t := len(r) - 1; t >= 0; t-- {
			sum = r[t] + 0.947*sum
			g[t] = sum
		}
		return g
	})
	b.Tensors["advantages"] = &dump.Tensor{Data: white(b, b.Token("raw"), 1), Layout: dump.PerToken, Type: format.F32, Shape: []int{b.Rows, b.Cols}}
	b = b.Without("raw", "values", "returns", "kl")
	require.Equal(t, "0.947", texts(Shown(Find("advantage/return"), b, &convention.Set{})[0])["gae.gamma"])
	fits, _ := Complete(Find("advantage/return"), b, &convention.Set{})
	require.NotEmpty(t, fits)
	require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
}

// The clip of a value loss lies between the gradients that are 0 and those that are not, and the loss says where.
func TestValueClipsAreShown(t *testing.T) {
	const clip = 0.137
	for seed := range uint64(4) {
		for slip := range 4 { // none; the smaller square; the held value alone; held from above only
			b := ppoBatch(seed, rewardsOf(0, 0), gaeOf(1, 0.9))
			rng := rand.New(rand.NewPCG(seed, 9))
			v, g := make([]float64, len(b.Mask)), make([]float64, len(b.Mask))
			var sum, n float64
			for i, m := range b.Mask {
				if m {
					n++
					v[i] = float64(float32(b.Token("values")[i] + 0.15*rng.NormFloat64()))
				}
			}
			for i, m := range b.Mask {
				if !m {
					continue
				}
				old, target := b.Token("values")[i], b.Token("returns")[i]
				low := old - clip
				if slip == 3 {
					low = math.Inf(-1)
				}
				held := max(min(v[i], old+clip), low)
				d, e := v[i]-target, held-target
				term, plain := max(d*d, e*e), d*d >= e*e
				switch slip {
				case 1:
					term, plain = min(d*d, e*e), d*d <= e*e
				case 2:
					term, plain = e*e, false
				}
				if sum += 0.5 * term / n; plain || held == v[i] {
					g[i] = float64(float32(d / n))
				}
			}
			for name, x := range map[string][]float64{"values_new": v, "dvalues": g} {
				b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Type: format.F32, Shape: []int{b.Rows, b.Cols}}
			}
			b.Tensors["value_loss"] = &dump.Tensor{Data: []float64{float64(float32(sum))}, Layout: dump.PerFile, Type: format.F32}
			ch := Find("aggregate/value_loss")
			if slip > 0 {
				require.Contains(t, ValueClipsUnder(b, &convention.Set{}), []Change{{"value.clip", convention.Value{}, convention.NumberValue(clip)}}, "slip %d", slip)
				continue
			}
			require.Equal(t, "0.137", texts(Shown(ch, b, &convention.Set{})[0])["value.clip"])
			fits, _ := Complete(ch, b, &convention.Set{})
			require.NotEmpty(t, fits)
			require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
		}
	}
}

// Coefficients are what losses give that are not told in parts, whatever aggregates their terms; a term that is subtracted has none.
func TestCoefficientsOfWholeLosses(t *testing.T) {
	sign := 1.0
	run := func() map[string]float64 {
		var l Losses
		for f := range 6 {
			lengths := []int{1 + f%3, 4, 2}
			token := func(i int) float64 { return math.Sin(float64(7*i + f)) }
			b := lossFile(4, lengths, token, nil)
			b.Meta.MicroBatches = 1
			kl, h := make([]float64, 12), make([]float64, 12)
			var loss float64
			for i := range kl {
				kl[i], h[i] = math.Abs(math.Cos(float64(5*i+2*f))), 2+math.Sin(float64(3*i-f))
				if b.Mask[i] {
					loss += (b.Token("token_loss")[i] + sign*0.0317*kl[i] - 0.0042*h[i]) / float64(lengths[i/4]) / 3
				}
			}
			for name, x := range map[string][]float64{"kl": kl, "entropy": h} {
				b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerToken, Type: format.F32}
			}
			b.Tensors["loss"] = &dump.Tensor{Data: []float64{loss}, Layout: dump.PerFile, Type: format.F32}
			l.Add(b)
		}
		return l.Coefficients()
	}
	require.Equal(t, map[string]float64{"kl.beta": 0.0317, "entropy.coef": 0.0042}, run())
	sign = -1 // no configuration has it: the loss is wrong by the sign of the term, whose coefficient is the same
	require.Equal(t, map[string]float64{"kl.beta": 0.0317, "entropy.coef": 0.0042}, run())
}

// Rewards that a baseline of the group was subtracted from end in other numbers than the scores, by more than a KL term is.
func TestCentredRewards(t *testing.T) {
	for _, baseline := range []float64{0, 0.7} {
		b := ppoBatch(5, func(_ int, score float64, kl []float64, last int) []float64 {
			r := make([]float64, len(kl))
			for t, k := range kl {
				r[t] = -0.02 * k
			}
			r[last] += score - baseline
			return r
		}, gaeOf(1, 1))
		require.False(t, CentredRewards(b), "no groups")
		b.Tensors["group_id"] = &dump.Tensor{Data: make([]float64, b.Rows), Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{b.Rows}}
		require.Equal(t, baseline > 0, CentredRewards(b))
	}
}
