package runlog_test

import (
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A policy that is trained and equals its reference in every line does not train what the forward pass reads. A rate or a gradient of 0, and a
// KL that is merely small, are something else.
func TestPolicyThatStaysItsReference(t *testing.T) {
	grpo := func(kl func(i int) float64, lr, norm float64) string {
		return lines(30, func(i int) string {
			return fmt.Sprintf("{'loss': %.4f, 'grad_norm': %g, 'learning_rate': %g, 'reward': %g, 'reward_std': 0.3, 'frac_reward_zero_std': 0.1, 'completions/mean_length': 40.0, 'kl': %v, 'epoch': %g}",
				.1*wave(i), norm, lr, .4+.01*wave(i), kl(i), .01*float64(i+1))
		})
	}
	zero := func(int) float64 { return 0 }
	require.Equal(t, []string{"KL-ALWAYS-0"}, text(t, "t.log", grpo(zero, 1e-5, .2)).top)
	require.Empty(t, text(t, "t.log", grpo(func(i int) float64 { return 1e-6 * float64(i) }, 1e-5, .2)).top)
	require.NotContains(t, text(t, "t.log", grpo(zero, 0, .2)).top, "KL-ALWAYS-0")
	require.NotContains(t, text(t, "t.log", grpo(zero, 1e-5, 0)).top, "KL-ALWAYS-0")
	verl := lines(30, func(i int) string {
		return fmt.Sprintf("step:%d - actor/kl_loss:0.0 - actor/pg_loss:%g - actor/grad_norm:0.3 - actor/lr:1e-06 - critic/score/mean:%g", i+1, .1*wave(i), .3+.01*wave(i))
	})
	require.Equal(t, []string{"KL-ALWAYS-0"}, text(t, "v.log", verl).top)
	// OpenRLHF logs zeros where no KL is computed.
	require.Empty(t, text(t, "o.log", lines(30, func(i int) string {
		return fmt.Sprintf("INFO ✨ Global step %d: {'policy_loss': %g, 'actor_lr': 1e-06, 'actor_grad_norm': 0.3, 'kl': 0.0, 'reward': %g}", i+1, .1*wave(i), .3+.01*wave(i))
	})).top)
	dpo := func(moved float64) string {
		return lines(30, func(i int) string {
			a, b := moved*float64(i), -moved*float64(i)/3
			return fmt.Sprintf("{'loss': %.4f, 'grad_norm': 1.2, 'learning_rate': 5e-06, 'rewards/chosen': %v, 'rewards/rejected': %v, 'rewards/accuracies': 0.6, 'rewards/margins': %v, 'epoch': %g}", .6931-moved*float64(i)/4, a, b, a-b, .01*float64(i+1))
		})
	}
	require.Equal(t, []string{"KL-ALWAYS-0"}, text(t, "d.log", dpo(0)).top)
	require.Empty(t, text(t, "d.log", dpo(.003)).top)
}

// The mean of differences is the difference of the means.
func TestMargins(t *testing.T) {
	dpo := func(margin func(a, b float64) float64) string {
		return lines(20, func(i int) string {
			a, b := .02*float64(i)+.004*wave(i), -.005*float64(i)
			return fmt.Sprintf("{'loss': %.4f, 'grad_norm': 1.2, 'learning_rate': 5e-06, 'rewards/chosen': %.7f, 'rewards/rejected': %.7f, 'rewards/accuracies': 0.8, 'rewards/margins': %.7f, 'epoch': %g}", .69-.01*float64(i), a, b, margin(a, b), .01*float64(i+1))
		})
	}
	require.Empty(t, text(t, "d.log", dpo(func(a, b float64) float64 { return a - b })).top)
	require.Empty(t, text(t, "d.log", dpo(func(a, b float64) float64 { return (a - b) * (1 + 0x1p-9) })).top, "bfloat16")
	require.Equal(t, []string{"LOSS-SUM"}, text(t, "d.log", dpo(func(a, b float64) float64 { return a + b })).fails)
}

// The KL begins at 0 where the policy begins as its reference, and grows from there: a first line over ten updates is below the next ones.
func TestFirstKLOfTRL(t *testing.T) {
	grpo := func(kl func(i int) float64) string {
		return lines(20, func(i int) string {
			return fmt.Sprintf("{'loss': %.4f, 'grad_norm': 0.2, 'learning_rate': 1e-05, 'reward': %g, 'reward_std': 0.3, 'frac_reward_zero_std': 0.1, 'completions/mean_length': 40.0, 'kl': %v, 'epoch': %g}",
				.1*wave(i), .4+.01*wave(i), kl(i), .01*float64(i+1))
		})
	}
	require.Equal(t, []string{"H7a"}, text(t, "t.log", grpo(func(i int) float64 { return .02 + .001*wave(i) })).top)
	require.Empty(t, text(t, "t.log", grpo(func(i int) float64 { return .004 + .0002*wave(i) })).top, "two roundings of bfloat16")
	require.NotContains(t, text(t, "t.log", grpo(func(i int) float64 { return .012 * float64(1+3*i) })).top, "H7a", "many updates to a line")
}

// Over tokens of the old policy the mean of π/π_old is 1, however far the update went.
func TestMeanRatioOfTRL(t *testing.T) {
	ppo := func(ratio float64) string {
		return lines(12, func(i int) string {
			return fmt.Sprintf("{'objective/kl': 0.0%d, 'objective/scores': %g, 'policy/approxkl_avg': 0.004, 'policy/clipfrac_avg': 0.02, 'loss/value_avg': 0.1, 'val/ratio': %g, 'lr': 1e-06, 'episode': %d}", i%3, .2+.01*float64(i), ratio+.001*wave(i), 64*(i+1))
		})
	}
	require.Empty(t, text(t, "p.log", ppo(1)).top)
	require.Equal(t, []string{"H1"}, text(t, "p.log", ppo(.01)).fails)
	// open-instruct logs names of TRL's PPO and makes one update of a rollout.
	open := lines(12, func(i int) string {
		return fmt.Sprintf(`{"training_step":%d,"objective/kl_avg":0.01,"policy/clipfrac_avg":0.0,"loss/policy_avg":%g,"val/ratio":1.0,"val/ratio_var":0.0,"lr":1e-06,"scores":%g}`, i+1, .01*wave(i), .2+.01*float64(i))
	})
	require.Empty(t, text(t, "o.jsonl", open).top)
}

// A nat for each token is far; the same number as a sum over a long row is not.
func TestFarFromReferenceInVerl(t *testing.T) {
	row := func(kl, length float64) string {
		return lines(30, func(i int) string {
			return fmt.Sprintf("step:%d - actor/kl_loss:%g - actor/pg_loss:%g - actor/grad_norm:0.3 - actor/lr:1e-06 - response_length/mean:%g", i+1, kl*math.Min(1, float64(i)/10), .1*wave(i), length)
		})
	}
	require.Equal(t, []string{"A3"}, text(t, "v.log", row(2.5, 9)).top)
	require.Empty(t, text(t, "v.log", row(.05, 9)).top)
	require.Empty(t, text(t, "v.log", row(2.5, 400)).top)
}

// A reward function may score no completion of a step (None): TRL takes nanmean of what it scored, and adds the functions by nansum.
func TestRewardFunctionThatScoresNothing(t *testing.T) {
	row := func(reward string) string {
		return lines(12, func(i int) string {
			tool, total := "0.25", fmt.Sprint(.25+.01*wave(i))
			if i == 4 {
				tool, total = "nan", reward
			}
			return fmt.Sprintf("{'loss': %.4f, 'grad_norm': 0.2, 'learning_rate': 1e-05, 'rewards/tool/mean': %s, 'rewards/tool/std': %s, 'reward': %s, 'reward_std': 0.3, 'frac_reward_zero_std': 0.1, 'completions/mean_length': 40.0, 'epoch': %g}", .1*wave(i), tool, tool, total, .01*float64(i+1))
		})
	}
	require.Empty(t, text(t, "t.log", row("0.24")).top)
	require.Equal(t, []string{"NONFINITE"}, text(t, "t.log", row("nan")).fails)
}

// reward_weights are in the order of the functions, as TRL logs them; loggers may sort names.
func TestOrderOfRewardWeights(t *testing.T) {
	row := func(names [3]string, w [3]float64) string {
		return lines(12, func(i int) string {
			v := map[string]float64{"short": .3 + .02*wave(i), "answer": .5 + .03*wave(5*i), "format": .9 + .04*wave(3*i)}
			total := w[0]*v["short"] + w[1]*v["answer"] + w[2]*v["format"]
			parts := []string{fmt.Sprintf(`"step":%d`, i+1), `"completions/mean_length":9`}
			for _, n := range names {
				parts = append(parts, fmt.Sprintf(`"rewards/%s/mean":%.9g`, n, v[n]))
			}
			return "{" + strings.Join(parts, ",") + fmt.Sprintf(`,"reward":%.9g}`, total)
		})
	}
	given, sorted := [3]string{"short", "answer", "format"}, [3]string{"answer", "format", "short"}
	require.Empty(t, text(t, "t.jsonl", row(given, [3]float64{1, .5, .25}), "reward_weights=[1,0.5,0.25]").top)
	require.Empty(t, text(t, "t.jsonl", row(sorted, [3]float64{1, .5, .25}), "reward_weights=[1,0.5,0.25]").top)
	require.Equal(t, []string{"REWARD-SUM"}, text(t, "t.jsonl", row(given, [3]float64{1, 1, 1}), "reward_weights=[1,0.5,0.25]").fails)
}

// An epoch of two digits stays where it is for many lines of a large data set.
func TestEpochThatStays(t *testing.T) {
	require.Empty(t, text(t, "t.log", lines(40, func(i int) string {
		return fmt.Sprintf("{'loss': %.4f, 'grad_norm': 0.2, 'learning_rate': 1e-05, 'epoch': 0.0}", 2.5-.01*float64(i)+.02*wave(i))
	})).top)
}

// Columns that are parted by semicolons have decimal commas.
func TestDecimalComma(t *testing.T) {
	row := func(at int) string {
		return "step;loss;grad_norm;reward\n" + lines(20, func(i int) string {
			loss := strings.ReplaceAll(fmt.Sprintf("%.6f", 2.5-.01*float64(i)), ".", ",")
			if i == at {
				loss = "NaN"
			}
			return fmt.Sprintf("%d;%s;0,25;0,%d", i+1, loss, 30+i)
		})
	}
	require.Empty(t, text(t, "t.csv", row(-1)).top)
	require.Equal(t, []string{"NONFINITE"}, text(t, "t.csv", row(12)).fails)
}

// The source logs every fifty batches: slopes over 200 and 300 of them are of the whole run.
func TestSlopesOfSparseLines(t *testing.T) {
	run := func(loss, mask func(b float64) float64) string {
		return lines(30, func(i int) string {
			b := float64(50 * i)
			return fmt.Sprintf("[Batch %4d] Reward: %7.4f | Loss: %7.4f | Qwen_grad: %.2e | Mask_ratio: %.4f", 50*i, .004*wave(i+1), loss(b), 3e-5, mask(b))
		})
	}
	fall := func(b float64) float64 { return math.Exp(-b / 1500) }
	weight := func(b float64) float64 { return .5 + .5*fall(b) }
	require.Empty(t, text(t, "a.log", run(func(b float64) float64 { return 2.6 * weight(b) * math.Exp(-b/1400) * (1 + .02*wave(int(b))) }, fall)).top, "a cross-entropy that falls as the errors do")
	require.Equal(t, []string{"D9"}, text(t, "a.log", run(func(b float64) float64 { return 2.6*weight(b) + .0003*b }, fall)).top)
	require.Equal(t, []string{"D12"}, text(t, "a.log", run(func(b float64) float64 { return 2.4 * math.Exp(-b/2500) }, func(b float64) float64 { return .82 + .00003*b })).top)
}

// A cause with a failure below it is a failure.
func TestSeverityOfACause(t *testing.T) {
	got := text(t, "t.log", lines(12, func(i int) string {
		return fmt.Sprintf("{'loss': 0.0, 'grad_norm': 0.0, 'learning_rate': 1e-05, 'reward': 0.5, 'reward_std': 0.0, 'frac_reward_zero_std': 1.0, 'completions/mean_length': 40.0, 'epoch': %g}", .01*float64(i+1))
	}))
	require.Equal(t, []string{"ZERO-STD"}, got.top)
	require.Contains(t, got.fails, "ZERO-STD")
}

// Two runs with the same steps, line by line. A step has one line in TRL and verl; a reward that is there twice is that of two ranks.
func TestStepsInTwoLines(t *testing.T) {
	row := func(apart float64) string {
		return lines(40, func(i int) string {
			k := i / 2
			return fmt.Sprintf("step:%d - actor/pg_loss:%g - actor/grad_norm:0.3 - actor/lr:1e-06 - critic/score/mean:%g", k+1, .1*wave(k), .3+.01*wave(k)+apart*float64(i%2))
		})
	}
	require.Equal(t, []string{"TWO-RUNS"}, text(t, "v.log", row(.05)).top)
	require.Empty(t, text(t, "v.log", row(0)).top)
}

// TRL's PPO logs k2 for the distance of an update, of which clipping is due as of any other.
func TestClippingThatNeverBinds(t *testing.T) {
	row := func(clip float64) string {
		return lines(30, func(i int) string {
			return fmt.Sprintf("{'objective/kl': 0.0%d, 'objective/scores': %g, 'policy/approxkl_avg': %g, 'policy/clipfrac_avg': %g, 'loss/value_avg': 0.1, 'val/ratio': %g, 'lr': 1e-06, 'episode': %d}",
				i%3, .2+.01*float64(i), .08+.005*wave(i), clip, 1+.001*wave(i), 64*(i+1))
		})
	}
	require.Equal(t, []string{"CLIP-ALWAYS-0"}, text(t, "p.log", row(0)).top)
	require.Empty(t, text(t, "p.log", row(.12)).top)
}

// Logs of toys that train, and what they have.
func TestDrawnLogs(t *testing.T) {
	list, err := os.ReadFile("testdata/drawn/logs.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(list)) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		content, err := os.ReadFile("testdata/drawn/" + f[0])
		require.NoError(t, err)
		got := text(t, f[0], string(content), f[min(2, len(f)):]...)
		if len(f) == 1 || f[1] == "-" {
			require.Empty(t, got.top, f[0])
			continue
		}
		require.Equal(t, f[1], got.top[0], f[0])
	}
}
