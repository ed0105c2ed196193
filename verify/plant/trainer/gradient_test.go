package trainer

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/convention"
)

// forward returns a healthy run in float64 up to the gradients.
func forward(c Config) *run[float64] {
	c.DType = format.F64
	c = c.withDefaults()
	r := &run[float64]{Config: c, o: settingsOf(c.Set)}
	r.world = newWorld(c, r.o, "")
	for _, stage := range []func(){
		r.masks, r.logprobs, r.ratios, r.divergence, r.reward, r.advantage, r.policy, r.value, r.aggregate, r.gradient,
	} {
		stage()
	}
	return r
}

// total is the sum of the policy and KL losses of all files as a function of the new log-probs, where everything that the
// trainer detaches keeps its value from base: advantages, engine weights, weights of score-function losses, and lp itself
// where the trainer writes sg(lp).
func total(base *run[float64], lp []float64) float64 {
	r := *base
	r.lp[newPolicy] = lp
	if r.o.stopgrad { // exp(lp − sg(lp))
		r.o.stopgrad = false
		r.lp[oldPolicy] = base.lp[newPolicy]
	}
	r.ratios()
	if level := r.o.ratioLevel; r.o.ratioPerToken && (level == "seq_mean" || level == "seq_sum") { // sg(ρ)·exp(lp − sg(lp))
		for i, x := range base.ratio {
			if r.ratio[i] = x; base.share[i] != 0 {
				r.ratio[i] = x * math.Exp(lp[i]-base.lp[newPolicy][i])
			}
		}
	}
	var loss float64
	if r.o.loss == "gmpo" {
		r.direct = make([]float64, r.cells())
		r.geometric()
		for _, s := range r.spans {
			for _, l := range r.rowLoss[s.lo:s.hi] {
				loss += l * r.steps() / float64(s.hi-s.lo)
			}
		}
	}
	held := base.covariance(base.adv)
	for i, w := range base.weight {
		if w == 0 || r.o.loss == "gmpo" {
			continue
		}
		switch r.o.loss {
		case "reinforce", "cispo", "vespo", "dppo_tv", "dppo_kl": // −w·A·lp with everything but lp detached
			loss += w * base.direct[i] * lp[i]
		default:
			l, _, _ := r.cell(i, r.adv[i], 0, held)
			if r.isw != nil {
				l *= r.isw[i]
			}
			loss += w * l
		}
	}
	if !r.o.term() {
		return loss
	}
	if r.o.klKind == "seq_prob" {
		w := base.klWeights()
		for row := range r.rows {
			k, _ := r.sequenceProb(row)
			for _, x := range w[row*r.cols : (row+1)*r.cols] {
				loss += r.o.beta * x * k
			}
		}
		return loss
	}
	r.divergence()
	for i, w := range base.klWeights() {
		if w == 0 {
			continue
		}
		k := r.bare[i]
		switch r.o.klGrad {
		case "score_function":
			k *= math.Exp(lp[i] - base.lp[newPolicy][i])
		case "straight_through_k2": // the value is k, the gradient that of w·½d²
			weight := 1.0
			if r.o.klISCap > 0 {
				weight = min(math.Exp(base.lp[newPolicy][i]-base.lp[oldPolicy][i]), r.o.klISCap)
			}
			d := lp[i] - r.lp[refPolicy][i]
			k = weight * 0.5 * d * d
		default:
			k = r.kl[i] // with its ratio
		}
		loss += r.o.beta * w * k
	}
	return loss
}

// sets returns complete sets of all profiles and kinds.
func sets(t *testing.T, seed uint64) map[string]*convention.Set {
	r := rand.New(rand.NewPCG(seed, 5))
	all := map[string]*convention.Set{}
	for _, p := range convention.Profiles() {
		all[p.Name] = Complete(p, r)
	}
	loss, err := convention.Find("loss.kind")
	require.NoError(t, err)
	for _, k := range loss.Values {
		all["loss "+k] = Vary(all["verl-grpo@0.9"], "loss.kind", k, r)
	}
	all["loss gspo, a critic"] = Vary(all["verl-ppo@0.9"], "loss.kind", "gspo", r)
	engine := &completion{Set: Vary(all["openrlhf-ppo@0.11"], "loss.kind", "gspo", r), rand: r}
	engine.put("ratio.old", "engine")
	engine.put("tis.level", "none")
	all["loss gspo, to the engine"] = engine.Set
	for _, grad := range []string{"naive", "score_function", "straight_through_k2", "is_corrected"} {
		for _, kind := range []string{"k1", "k2", "k3", "abs", "ratio_d"} {
			for _, level := range []string{"token", "seq_mean"} {
				if kind == "ratio_d" && grad != "naive" {
					continue
				}
				c := &completion{Set: all["trl-grpo@1.16"], rand: r}
				c.put("kl.grad", grad)
				c.put("kl.kind", kind)
				c.put("kl.place", "loss")
				c.put("ratio.level", level)
				c.put("ratio.old", "stored")
				all["kl "+kind+" "+grad+" "+level] = c.Set
			}
		}
	}
	for _, k := range []string{"token", "seq_mean_token_mean", "seq_mean_token_sum", "seq_sum_const", "luspo", "token_sum"} {
		all["agg "+k] = Vary(all["trl-grpo@1.9"], "agg.kind", k, r)
	}
	return all
}

// The gradients written by hand are the central differences of the losses, in random directions: h is such that the third
// derivative adds 1e-10 and rounding 1e-11; a cell within h of a kink is left out of the direction.
func TestGradients(t *testing.T) {
	const h = 1e-6
	for seed := range uint64(2) {
		for name, set := range sets(t, seed) {
			c := Config{Set: set, Seed: seed, Rows: 8, Cols: 8, Files: 2, Ranks: 1 + int(seed%2), Holes: seed%2 == 0, FirstStep: false}
			if set.Value("kl.kind").String() == "seq_prob" {
				c.Cols = 1 // the probability of a longer sequence is too small for its gradient to show
			}
			r := forward(c)
			d := rand.New(rand.NewPCG(seed, 9))
			for range 3 {
				direction := make([]float64, r.cells())
				var want float64
				for i := range direction {
					direction[i] = d.NormFloat64()
					want += direction[i] * r.dlogp[i]
				}
				moved := func(by float64) []float64 {
					x := slices.Clone(r.lp[newPolicy])
					for i := range x {
						x[i] += by * direction[i]
					}
					return x
				}
				up, down := total(r, moved(h)), total(r, moved(-h))
				got := (up - down) / (2 * h)
				var scale float64
				for i, g := range r.dlogp {
					scale += math.Abs(g * direction[i])
				}
				require.InDeltaf(t, want, got, 1e-6*(1e-3+scale), "%s, seed %d", name, seed)
			}
			// Each row's own gradient is zero outside the cells that the loss takes.
			var size float64
			for _, g := range r.dlogp {
				size += math.Abs(g)
			}
			require.NotZero(t, size, name)
		}
	}
}

func TestValueGradients(t *testing.T) {
	const h = 1e-6
	found := 0
	for seed := range uint64(2) {
		for name, set := range sets(t, seed) {
			r := forward(Config{Set: set, Seed: seed, Rows: 8, Cols: 8, Files: 2, Holes: true})
			if r.valueCells == nil {
				continue
			}
			found++
			at := func(by float64, direction []float64) float64 {
				s := *r
				s.values1 = slices.Clone(r.values1)
				for i := range s.values1 {
					s.values1[i] += by * direction[i]
				}
				s.value()
				coef := 1.0
				if s.o.valueInLoss {
					coef = s.o.valueCoef
				}
				var loss float64
				for i, w := range s.valueW {
					loss += coef * w * s.valueCells[i]
				}
				return loss
			}
			d := rand.New(rand.NewPCG(seed, 9))
			direction := make([]float64, r.cells())
			var want float64
			for i := range direction {
				direction[i] = d.NormFloat64()
				want += direction[i] * r.dvalues[i]
			}
			require.InDelta(t, want, (at(h, direction)-at(-h, direction))/(2*h), 1e-6*(1+math.Abs(want)), name)
		}
	}
	require.Greater(t, found, 5)
}

// A gradient with a bug does not pass the test above: each of these plants changes the gradient alone.
func TestGradientPlants(t *testing.T) {
	all := []map[string]*convention.Set{sets(t, 0), sets(t, 1)}
	for _, id := range []string{"RATIO-DETACHED", "CLIP-GRADIENT-LEAK", "KL-DETACHED", "GRAD-LAST-CHUNK"} {
		shown := 0
		for seed := range uint64(2) {
			for _, set := range all[seed] {
				if !FindPlant(id).Applies(set) || shown > 4 {
					continue
				}
				c := Config{Set: set, Seed: seed, Files: 2}
				b, _, visible := Faulty(c, id)
				if !visible {
					continue
				}
				healthy, _ := Healthy(c)
				require.Equal(t, healthy.PerFile("loss"), b.PerFile("loss"), id)
				require.Equal(t, healthy.Token("token_loss"), b.Token("token_loss"), id)
				require.NotEqual(t, healthy.Token("dlogp"), b.Token("dlogp"), id)
				shown++
			}
		}
		require.NotZero(t, shown, id)
	}
}
