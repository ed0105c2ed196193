package golden_test

import (
	"math"
	"strings"
	"testing"

	"plumbline/reference/rl"

	"github.com/stretchr/testify/require"
)

// f32 is the unit roundoff of float32.
const f32 = 0x1p-24

func TestKL(t *testing.T) {
	compared := map[string]int{}
	for _, e := range load(t, "kl") {
		if e.Function == "compute_reward" {
			compareReward(t, e)
			compared[e.Peer+" "+e.Function]++
			continue
		}
		lp, ref := e.input(t, "logp").Data, e.input(t, "ref_logp").Data
		var o rl.KLOptions
		var old []float64
		single := false // the framework computed in float32
		switch e.Peer {
		case "verl":
			kind, plus := strings.CutSuffix(e.str(t, "kind"), "+")
			if kind == "full" {
				require.Equal(t, "NotImplementedError", e.output(t, "kl").Raises)
				compared["verl raises"]++
				continue
			}
			o = rl.KLOptions{Kind: verlKL(t, kind), ClampIn: 20, ClampOut: 10}
			if plus {
				o.Grad = rl.KLStraightThroughK2
			}
		case "openrlhf":
			kind, err := rl.ParseKLKind(e.str(t, "kl_estimator"))
			require.NoError(t, err)
			o = rl.KLOptions{Kind: kind, ClampOut: 10, ClampAll: true}
			if kind == rl.KLK3 {
				o.ClampIn, o.ClampInBelow = 10, true
			}
			if e.flag(t, "unbiased_gradient") {
				o.Grad = rl.KLStraightThroughK2
			}
			if e.flag(t, "log_probs_old") {
				o.ISCap, old = 10, e.input(t, "old_logp").Data
			}
			single = true
		case "liger":
			o = rl.KLOptions{Kind: rl.KLK3}
		}
		value, grad := rl.KL(nil, nil, lp, ref, old, o)
		if single {
			compareSingle(t, e, &o, lp, ref, old, value, grad)
		} else {
			requireNear(t, e, "kl", value, e.output(t, "kl").Data, exact)
			requireNear(t, e, "dkl_dlogp", grad, e.output(t, "dkl_dlogp").Data, exact)
		}
		compared[e.Peer+" "+e.Function]++
	}
	require.Equal(t, map[string]int{"verl kl_penalty": 36, "verl raises": 3, "openrlhf compute_approx_kl": 27,
		"liger k3_loss_fn(ref, logp)": 3, "openrlhf compute_reward": 3}, compared)
}

// verlKL maps verl's names.
func verlKL(t *testing.T, kind string) rl.KLKind {
	t.Helper()
	alias := map[string]string{"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
	if a, ok := alias[kind]; ok {
		kind = a
	}
	k, err := rl.ParseKLKind(kind)
	require.NoError(t, err)
	return k
}

// compareSingle compares with a framework that rounds the log-probs to float32 and computes there. With u the unit roundoff
// of float32, d carries e = u·(|lp| + |ref| + |d|); then
//
//	k1 e, k2 |d|·e + 2u·k2, k3 |e^{−d} − 1|·e + e^{−d}·(2u + e²) + u·k3;   slopes likewise
//
// Behind a clamp the value is the bound itself and its slope 0.
func compareSingle(t *testing.T, e *entry, o *rl.KLOptions, lp, ref, old, value, grad []float64) {
	t.Helper()
	want, dwant := e.output(t, "kl").Data, e.output(t, "dkl_dlogp").Data
	for i := range lp {
		d := lp[i] - ref[i]
		ed := f32 * (math.Abs(lp[i]) + math.Abs(ref[i]) + math.Abs(d))
		var ev, eg float64
		switch o.Kind {
		case rl.KLK1:
			ev, eg = ed, 0
		case rl.KLK2:
			ev, eg = math.Abs(d)*ed+2*f32*value[i], ed
		case rl.KLK3:
			x := math.Exp(min(-d, 10))
			ev = math.Abs(math.Expm1(min(-d, 10)))*ed + x*(2*f32+ed*ed) + f32*(math.Abs(x+d)+value[i])
			eg = x * (ed + 2*f32)
		}
		if o.Grad == rl.KLStraightThroughK2 {
			w, ew := 1.0, 0.0
			if old != nil {
				w = math.Exp(lp[i] - old[i])
				ew = w * (f32*(math.Abs(lp[i])+math.Abs(old[i])+math.Abs(lp[i]-old[i])) + 3*f32)
			}
			eg = w*ed + math.Abs(d)*ew + 2*f32*math.Abs(d*w)
			ev += 2 * f32 * (d*d/2*w + math.Abs(value[i])) // the sum of two detached halves
		}
		if math.Abs(value[i]) == 10 && o.Grad == rl.KLNaive {
			ev = 0 // the bound, exactly
		}
		if !(math.Abs(value[i]-want[i]) <= ev) {
			t.Errorf("%s: kl: cell %d is %v, want %v within %.3g", e.name(), i, value[i], want[i], ev)
		}
		if !(math.Abs(grad[i]-dwant[i]) <= eg+f32*math.Abs(grad[i])) {
			t.Errorf("%s: dkl_dlogp: cell %d is %v, want %v within %.3g", e.name(), i, grad[i], dwant[i], eg)
		}
	}
}

// compareReward checks OpenRLHF's per-token reward: a negative coefficient counts as 0, the score is clipped before it is
// placed.
func compareReward(t *testing.T, e *entry) {
	t.Helper()
	score, mask := e.input(t, "r").Data, e.input(t, "action_mask")
	rows, cols := mask.dims(t)
	beta, _ := e.num(t, "kl_coef")
	if clip := e.nums(t, "reward_clip_range"); clip != nil {
		score = rl.ClipRewards(nil, score, clip[0], clip[1])
	}
	got := rl.TokenRewards(nil, score, e.input(t, "kl").Data, mask.bools(), nil, rows, cols,
		rl.RewardOptions{Beta: max(beta, 0), KLEverywhere: true, EmptyLastColumn: true})
	requireNear(t, e, "reward", got, e.output(t, "reward").Data, exact)
}

// TestKLRejects: a wrong clamp and a wrong gradient differ from what the frameworks returned.
func TestKLRejects(t *testing.T) {
	n := 0
	for _, e := range load(t, "kl") {
		if e.Case != "extreme" || e.Peer != "verl" || e.Options["kind"] != "k3" && e.Options["kind"] != "k1+" {
			continue
		}
		lp, ref := e.input(t, "logp").Data, e.input(t, "ref_logp").Data
		for name, o := range map[string]rl.KLOptions{
			"TRL":      {Kind: rl.KLK3},
			"NeMo-RL":  {Kind: rl.KLK1, ClampIn: 20, ClampOut: 10, ClampAll: true, Grad: rl.KLStraightThroughK2},
			"naive k1": {Kind: rl.KLK1},
		} {
			value, grad := rl.KL(nil, nil, lp, ref, nil, o)
			same := near(value, e.output(t, "kl").Data, exact) == nil && near(grad, e.output(t, "dkl_dlogp").Data, exact) == nil
			require.False(t, same, "%s: %s", e.name(), name)
			n++
		}
	}
	require.Equal(t, 6, n)
}
