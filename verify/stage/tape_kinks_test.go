package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
)

// kink is a token whose ratio, log-ratio or estimate lies exactly on a bound.
type kink struct {
	kinds   []string
	options string
	at      float64 // the log-ratio lp − old
	ref     float64 // lp − logp_ref
	adv     float64
	slope   float64 // of the loss in lp: what the rule leaves
	passed  float64 // what is left if the clamp passes on its bound, as torch did before pytorch's bounds were exclusive
}

// The rule is torch 2.15's: a clamp passes nothing on its bound. Where it is one side of a maximum, whose sides are equal there,
// torch.max gives half of the gradient to each, so that the unclipped side keeps its half.
func kinks() []kink {
	up, down := math.Exp(0.25), math.Exp(-0.25)
	high, low := number(up-1), number(1-down) // 1 ± these are the ratios, exactly
	surrogate := []string{"ppo", "gspo", "luspo", "clip_cov"}
	ratio := append([]string{"sapo", "kl_cov"}, surrogate...)
	bounds := "clip.low=" + low + " clip.high=" + high + " "
	free := "clip.low=none clip.high=none "
	return []kink{
		{kinds: surrogate, options: bounds, at: 0.25, adv: 2, slope: -up, passed: -2 * up},
		{kinds: surrogate, options: bounds, at: -0.25, adv: -2, slope: down, passed: 2 * down},
		{kinds: surrogate, options: bounds, at: 0.25, adv: -2, slope: up, passed: 2 * up},
		{kinds: surrogate, options: "clip.low=0 clip.high=0 ", at: 0, adv: 2, slope: -1, passed: -2},
		{kinds: surrogate, options: free + "clip.dual=" + number(up), at: 0.25, adv: -2, slope: up, passed: 2 * up},
		{kinds: surrogate, options: "clip.low=none clip.high=0 clip.delta=" + number(up), at: 0.25, adv: -2, slope: 0, passed: 2 * up},
		{kinds: []string{"gmpo"}, options: "clip.low=0.25 clip.high=0.25 agg.len_eps=0 ", at: 0.25, adv: 2, slope: -up, passed: -2 * up},
		{kinds: []string{"gmpo"}, options: "clip.low=0.25 clip.high=0.25 agg.len_eps=0 ", at: -0.25, adv: -2, slope: down, passed: 2 * down},
		{kinds: []string{"cispo"}, options: bounds + "clip.high_is_absolute=false ", at: 0.25, adv: 2, slope: -2 * up, passed: -2 * up},
		{kinds: ratio, options: free + "ratio.log_clamp=0.25 cov.coef=0 ", at: 0.25, adv: 2, slope: 0, passed: -2 * up},
		{kinds: []string{"gmpo"}, options: free + "ratio.log_clamp=0.25 agg.len_eps=0 ", at: 0.25, adv: 2, slope: 0, passed: -2 * up},
		{kinds: []string{"gspo"}, options: free + "ratio.seq_log_max=0.25 ", at: 0.25, adv: 2, slope: 0, passed: -2 * up},
		{kinds: []string{"reinforce"}, options: "kl.place=loss kl.beta=1 kl.kind=k1 kl.grad=naive kl.clamp_in=0.25 kl.clamp_applies_to_k1=true ", ref: 0.25, slope: 0, passed: 1},
		{kinds: []string{"reinforce"}, options: "kl.place=loss kl.beta=1 kl.kind=k1 kl.grad=naive kl.clamp_out=0.25 kl.clamp_applies_to_k1=true ", ref: 0.25, slope: 0, passed: 1},
		{kinds: []string{"reinforce"}, options: "kl.place=loss kl.beta=1 kl.kind=k3 kl.grad=naive kl.clamp_in=0.25 ", ref: -0.25, slope: 0, passed: 1 - up},
		{kinds: []string{"reinforce"}, options: "kl.place=loss kl.beta=1 kl.kind=abs kl.grad=naive ", ref: 0, slope: 0, passed: 1},
	}
}

// number is x as an option.
func number(x float64) string { return convention.NumberValue(x).String() }

// plainLoss has none of the bounds that the kinks are about, and one token in the denominator.
const plainLoss = "mask.tokens=response kl.place=none kl.adaptive=none kl.clamp_in=none kl.clamp_out=none kl.clamp_in_side=both kl.clamp_applies_to_k1=false kl.agg=same kl.is_cap=none " +
	"entropy.coef=0 ratio.level=token ratio.log_clamp=none ratio.seq_log_max=none ratio.len_eps=0 ratio.grad=row ratio.old=stored clip.low=none clip.high=none clip.dual=none clip.delta=none " +
	"sapo.tau_pos=1 sapo.tau_neg=1 cov.lower=1 cov.upper=5 cov.fraction=0 cov.coef=0 agg.kind=token agg.denominator=micro agg.div_ga=false mean.empty=zero loss.kind="

// TestKinks: exactly on a bound the gradient is what the rule leaves, on top of every profile, and it is the tape's.
func TestKinks(t *testing.T) {
	for _, p := range convention.Profiles() {
		for _, c := range kinks() {
			for _, kind := range c.kinds {
				text := plainLoss + kind + " " + c.options
				if kind == "gspo" {
					text = text + " ratio.level=seq_mean"
				}
				try := func(f *fault) (got float64) {
					s := &subject{set: with(configuration(p, kind, 0), text), fault: f}
					g := ofOneFile(newGrid(1, 1)).token("logp_new", -1).token("logp_old", -1-c.at).token("logp_ref", -1-c.ref).token("advantages", c.adv)
					if kind == "clip_cov" {
						g.token("token_loss", s.tokenOf(g)...)
					}
					x := s.onTape(g)
					require.Equal(t, c.slope, x.policyLoss().grad[0]+0, "%s, %s: on the tape", kind, c.options)
					return s.dlogp(g).Want[0] + 0
				}
				require.Equal(t, c.slope, try(nil), "%s, %s, %s", p.Name, kind, c.options)
				if c.passed != c.slope { // a clamp that passes on its bound is told from one that does not
					f := fault{swap: func(_ *subject, id string) func(*Case) *Prediction {
						return func(*Case) *Prediction { return &Prediction{Want: []float64{c.passed}, Bound: []float64{0}} }
					}}
					require.NotEqual(t, c.slope, try(&f))
				}
			}
		}
	}
}

// tokenOf returns the token losses of the tape.
func (s *subject) tokenOf(g grid) []float64 { return s.onTape(g).policyLoss().token }

// TestValueKink: on the bound of its clip the value loss keeps half of its gradient.
func TestValueKink(t *testing.T) {
	for _, p := range valueProfiles() {
		s := &subject{set: with(configuration(p, "ppo", 0), plainLoss+"ppo value.clip=0.25 value.factor=1 value.coef=1 value.mask=response")}
		g := ofOneFile(newGrid(1, 1)).token("values_new", 1.25).token("values", 1).token("returns", 2).
			token("logp_new", 0).token("logp_old", 0).token("advantages", 0)
		require.Equal(t, []float64{-0.75}, s.valueOnTape(g).grad, p.Name)
		require.Equal(t, []float64{-0.75}, s.predict("gradient/dvalues", g.Batch).Want, p.Name)
		s.fault = &fault{options: "value.clip=0.5"} // the bound is elsewhere
		require.Equal(t, []float64{-1.5}, s.predict("gradient/dvalues", g.Batch).Want, p.Name)
	}
}
