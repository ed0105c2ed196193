package runlog_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// Messages that torch 2.15 and transformers 5.23 raise for the bugs of the guides: their words are not those of the releases that the guides quote.
func TestMessagesOfReleases(t *testing.T) {
	for message, want := range map[string]string{
		"RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float":                                                                         "A1",
		"RuntimeError: mat1 and mat2 must have the same dtype, but got Float and Half":                                                                         "A1",
		"RuntimeError: mat1 and mat2 must have the same dtype, but got BFloat16 and Float":                                                                     "A1",
		"RuntimeError: expected m1 and m2 to have the same dtype, but got: c10::Half != float":                                                                 "A1",
		"RuntimeError: Expected query, key, and value to have the same dtype, but got query.dtype: c10::Half key.dtype: float and value.dtype: float instead.": "A1",
		"RuntimeError: expected target dtype to be Long or Byte, but got Float":                                                                                "D1",
		"ValueError: Expected input batch_size (8) to match target batch_size (9).":                                                                            "D1",
		"IndexError: Target 11 is out of bounds.":                                                                                                              "D1",
		"ImportError: You need to install `bitsandbytes` in order to use bitsandbytes optimizers: `pip install -U bitsandbytes`":                               "C2",
	} {
		require.Equal(t, []string{want}, text(t, "a.log", "{'loss': 2.31, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': 0.1}\n"+message+"\n").top, message)
	}
	for _, message := range []string{"query and key have the same dtype", "the target dtype is long", "install the wheel"} {
		require.Empty(t, text(t, "a.log", message+"\n").top, message)
	}
}

// TRL's RLOOTrainer logs k1 as kl under the names of GRPOTrainer: one negative line is no finding, a mean below 0 is.
func TestNegativeKLOfRLOO(t *testing.T) {
	row := func(kl func(i int) float64, more string) string {
		return lines(24, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"kl":%g,"completions/mean_length":10,"reward":%g%s}`, i, kl(i), .1+.01*float64(i%3), more)
		})
	}
	noise := func(i int) float64 { return 1e-3 * wave(3*i) }
	require.Empty(t, text(t, "t.jsonl", row(noise, "")).top)
	require.Equal(t, []string{"KL-NEGATIVE"}, text(t, "t.jsonl", row(func(i int) float64 { return noise(i) - .01 }, "")).top)
	require.Equal(t, []string{"KL-NEGATIVE"}, text(t, "t.jsonl", row(func(i int) float64 { return 20 * noise(i) }, ""), "kind=trl-grpo").fails)
	require.Empty(t, text(t, "t.jsonl", row(noise, ""), "kind=trl").top)
	for _, own := range []string{`,"cispo_clip_ratio":0`, `,"clip_ratio":0`} {
		require.Equal(t, []string{"KL-NEGATIVE"}, text(t, "t.jsonl", row(func(i int) float64 { return 20 * noise(i) }, own)).fails, own)
	}
}

// A reward function that leaves completions out (None) has a mean over those that it scored; the reward is over all. Weights that were
// not applied are told by what no share gives, or by other constant weights.
func TestRewardsOfSome(t *testing.T) {
	row := func(share func(i int) float64, b float64) string {
		return lines(12, func(i int) string {
			a, r := .3+.02*wave(i), .5+.03*wave(5*i)
			return fmt.Sprintf(`{"step":%d,"reward":%.9g,"rewards/a/mean":%.9g,"rewards/b/mean":%.9g,"completions/mean_length":9}`, i, a+b*share(i)*r, a, r)
		})
	}
	all := func(int) float64 { return 1 }
	some := func(i int) float64 { return float64(1+i*i%4) / 4 }
	require.Empty(t, text(t, "t.jsonl", row(all, .5)).top)
	require.Empty(t, text(t, "t.jsonl", row(some, .5)).top)
	require.Empty(t, text(t, "t.jsonl", row(some, .5), "reward_weights=[1,0.5]").top)
	require.Equal(t, []string{"REWARD-SUM"}, text(t, "t.jsonl", row(all, 1), "reward_weights=[1,0.5]").fails, "more than any share")
	require.Equal(t, []string{"REWARD-SUM"}, text(t, "t.jsonl", row(all, .25), "reward_weights=[1,0.5]").fails, "other constant weights")
}

// verl's file logger writes NaN and infinity as null, in any metric; a correlation of equal numbers and an explained variance of equal returns
// are 0/0.
func TestNullOfVerl(t *testing.T) {
	row := func(name string, from int) string {
		return lines(8, func(i int) string {
			v := "0.999"
			if i >= from {
				v = "null"
			}
			return fmt.Sprintf(`{"step":%d,"data":{"actor/pg_loss":0.1,"critic/score/mean":%g,%q:%s}}`, i, .1*float64(i), name, v)
		})
	}
	for _, name := range []string{"actor/kl_loss", "actor/grad_norm", "critic/vf_loss"} {
		for _, from := range []int{0, 7} {
			require.Equal(t, []string{"NONFINITE"}, text(t, "metrics.jsonl", row(name, from)).fails, "%s from %d", name, from)
		}
	}
	for _, name := range []string{"training/rollout_actor_probs_pearson_corr", "critic/vf_explained_var"} {
		require.Empty(t, text(t, "metrics.jsonl", row(name, 5)).top, name)
	}
	require.Empty(t, text(t, "console.log", lines(8, func(i int) string {
		v := "0.999"
		if i == 5 {
			v = "nan"
		}
		return fmt.Sprintf("step:%d - actor/pg_loss:0.1 - critic/score/mean:%g - training/rollout_actor_probs_pearson_corr:%s", i, .1*float64(i), v)
	})).top)
}

// −ρ in place of −log ρ has mean −1; a KL that drifts to −1 is something else.
func TestNegativeRatioAsKL(t *testing.T) {
	row := func(kl func(i int) float64) string {
		return lines(12, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"ppo_kl":%g,"actor_lr":1e-6,"reward":%g}`, i, kl(i), .1*float64(i))
		})
	}
	require.Equal(t, []string{"KL-NEGATIVE"}, text(t, "m.jsonl", row(func(i int) float64 { return -1 + .01*wave(i) })).fails)
	require.Empty(t, text(t, "m.jsonl", row(func(i int) float64 { return -.001 * float64(i) })).fails)
}

// Entropies of a greedy run come below 0 by the rounding of logits over a small temperature; a sign does not.
func TestEntropyNearZero(t *testing.T) {
	row := func(h float64) string {
		return lines(6, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"entropy":%g,"completions/mean_length":9,"reward":%g}`, i, h*float64(i%2), .1*float64(i))
		})
	}
	require.Empty(t, text(t, "m.jsonl", row(-1.6e-5)).fails)
	require.Empty(t, text(t, "m.jsonl", row(-.00194999)).fails) // two roundings, each an ulp of a logit of 2¹⁴: 2⁻⁹
	require.Equal(t, []string{"ENTROPY-RANGE"}, text(t, "m.jsonl", row(-.00195999)).fails)
	require.Equal(t, []string{"ENTROPY-RANGE"}, text(t, "m.jsonl", row(-.1)).fails)
}

// Lines of an evaluation have an epoch and no loss: the loss has not vanished there.
func TestEvaluationAtTheEnd(t *testing.T) {
	train := func(i int) string {
		return fmt.Sprintf(`{"train/loss":%g,"train/learning_rate":1e-5,"train/epoch":%g,"_step":%d}`, 1-.1*float64(i), .1*float64(i), i)
	}
	eval := func(i int) string { return fmt.Sprintf(`{"eval/loss":0.4,"train/epoch":%g,"_step":%d}`, .3, 3+i) }
	require.Empty(t, text(t, "wandb-history.jsonl", lines(3, train)+lines(4, eval)).top)
}

// Epochs over one rollout are no samples of their own: a number of the rollout stands in all of their lines, and a value loss rises with the
// returns it is told of. Where the explained variance is logged, it decides.
func TestEpochsAreNoSamples(t *testing.T) {
	epochs := func(value func(step int) float64, kl func(step int) float64) string {
		return lines(48, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"epoch":%d,"loss/policy":0.01,"loss/value":%g,"loss/entropy":-0.7,"params/policy_clip_frac":0.01,"params/approx_kl":0.001,"params/grad_norm":1,"rollout/reward_mean":%g,"rollout/kl_mean":%g}`, i/4, 1+i%4, value(i/4), .01*float64(i/4), kl(i/4))
		})
	}
	zero := func(int) float64 { return .01 }
	require.Empty(t, text(t, "m.jsonl", epochs(func(s int) float64 { return .005 + .002*float64(s) }, zero)).top)
	require.Empty(t, text(t, "m.jsonl", epochs(zero, func(s int) float64 {
		return []float64{.01, 0, -.02, -.03, 0, .01, .02, -.03, -.05, -.06, -.01, -.04}[s]
	})).top)
	// Rewards of 0 and 1 have a variance that rises with their mean, and with it the loss of a critic that predicts the mean. A loss that
	// rises by more, or beside a reward that stays, is a critic that loses ground.
	rare := func(rise func(i int) float64, loss float64) string {
		return lines(60, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"epoch":1,"loss/policy":0.01,"loss/value":%g,"loss/entropy":-0.7,"params/policy_clip_frac":0.01,"params/approx_kl":0.001,"params/grad_norm":1,"rollout/reward_mean":%g,"rollout/kl_mean":0.01}`, i, .03+loss*float64(i)+.0005*wave(i), rise(i))
		})
	}
	rises := func(i int) float64 { return .2 + .002*float64(i) }
	require.Empty(t, text(t, "m.jsonl", rare(rises, .0002)).top)
	require.Equal(t, []string{"C11"}, text(t, "m.jsonl", rare(rises, .0006)).top)
	require.Equal(t, []string{"C11"}, text(t, "m.jsonl", rare(func(i int) float64 { return .2 + .001*wave(i) }, .0002)).top)
	require.Equal(t, []string{"C11"}, text(t, "m.jsonl", rare(func(i int) float64 { return rises(i) - .3 }, .0002)).top, "rewards below 0")
	explained := func(up float64) string {
		return lines(60, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"actor/pg_loss":0.1,"critic/score/mean":%g,"critic/vf_loss":%g,"critic/vf_explained_var":%g}`, i, .01*float64(i), .01+.0005*float64(i), .3+up*float64(i))
		})
	}
	require.Empty(t, text(t, "m.jsonl", explained(.005)).top)
	require.Equal(t, []string{"C11"}, text(t, "m.jsonl", explained(-.005)).top)
}

// A frozen encoder has no gradient, and the projection behind it has: the graph is not cut.
func TestFrozenEncoder(t *testing.T) {
	row := func(behind float64) string {
		return lines(200, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"epoch":0,"batch":%d,"fresh_prompt":true,"reward":0.05,"loss":%g,"qwen_grad":0,"mask_ratio":%g,"hard_cell":%g,"grad_norm/qwen":%g}`, i+1, i, 2.4-.005*float64(i), 1-.004*float64(i), .5+.5*(1-.004*float64(i)), behind)
		})
	}
	require.Empty(t, text(t, "m.jsonl", row(1.9)).fails)
	require.Equal(t, []string{"D2"}, text(t, "m.jsonl", row(0)).fails)
}

// What pandas and W&B write of a NaN is an empty cell or null: a column without a number, or one that ends while the learning rate goes on,
// with a last line of totals that has neither. The loss of 0 beside it is the filter of transformers' Trainer.
func TestEmptyColumns(t *testing.T) {
	table := func(loss func(i int) string, norm func(i int) string) string {
		return "loss,grad_norm,learning_rate,epoch,step,train_runtime\n" + lines(12, func(i int) string {
			return fmt.Sprintf("%s,%s,1e-05,%g,%d,", loss(i), norm(i), .1*float64(i), i+1)
		}) + ",,,1.2,12,3.5\n"
	}
	number := func(i int) string { return fmt.Sprint(2 - .1*float64(i)) }
	until := func(n int, then string) func(i int) string {
		return func(i int) string {
			if i < n {
				return number(i)
			}
			return then
		}
	}
	require.Empty(t, text(t, "log.csv", table(number, number)).top)
	require.Equal(t, []string{"NAN-FILTERED"}, text(t, "log.csv", table(until(0, "0.0"), until(0, ""))).top)
	require.Equal(t, []string{"NAN-FILTERED"}, text(t, "log.csv", table(until(4, "0.0"), until(4, ""))).top)
	require.Equal(t, []string{"NONFINITE"}, text(t, "log.csv", table(until(0, ""), until(0, ""))).top)
	require.Equal(t, []string{"NONFINITE"}, text(t, "log.csv", table(until(5, ""), until(5, ""))).top)
	require.Empty(t, text(t, "log.csv", table(until(11, ""), until(11, ""))).top, "one line without it")
	require.Equal(t, []string{"NAN-FILTERED"}, text(t, "wandb-history.jsonl", lines(6, func(i int) string {
		return fmt.Sprintf(`{"train/loss":0.0,"train/grad_norm":NaN,"train/learning_rate":1e-5,"_step":%d}`, i)
	})).top)
	require.Equal(t, []string{"NONFINITE"}, text(t, "log.jsonl", lines(6, func(i int) string {
		return fmt.Sprintf(`{"step":%d,"loss":0.1,"reward":%g,"rewards/a/mean":%g,"rewards/b/mean":null,"completions/mean_length":9,"frac_reward_zero_std":0}`, i, .1*float64(i), .1*float64(i))
	})).top, "a function that scored nothing")
}

// A supervised loss that has tripled, and one above that of guessing; policy losses, which may be negative, have no such measure.
func TestLossExplodes(t *testing.T) {
	row := func(loss func(i int) float64, more string) string {
		return lines(30, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":%g,"grad_norm":1.1,"learning_rate":1e-5%s}`, i, loss(i), more)
		})
	}
	up := func(to float64) func(int) float64 {
		return func(i int) float64 { return 4 + .2*wave(i) + to*max(0, float64(i-10))/20 }
	}
	accuracy := `,"mean_token_accuracy":0.3`
	require.Empty(t, text(t, "m.jsonl", row(up(6), accuracy)).top)
	require.Equal(t, []string{"LOSS-EXPLODES"}, text(t, "m.jsonl", row(up(14), "")).top)
	require.Empty(t, text(t, "m.jsonl", row(up(14), "")).fails)
	require.Equal(t, []string{"LOSS-EXPLODES"}, text(t, "m.jsonl", row(up(14), accuracy)).fails)
	require.Empty(t, text(t, "m.jsonl", row(func(i int) float64 { return up(14)(i) - 4 }, "")).top, "below 0 at times")
	require.Empty(t, text(t, "m.jsonl", row(func(i int) float64 {
		if i == 12 {
			return 40
		}
		return 4
	}, "")).top, "one line")
}

// A preference loss that falls while its margin falls below 0 trains towards the rejected answers.
func TestPreferenceSign(t *testing.T) {
	row := func(margin, loss float64) string {
		return lines(30, func(i int) string {
			x := float64(i)
			return fmt.Sprintf(`{"step":%d,"loss":%g,"learning_rate":1e-5,"rewards/margins":%g,"rewards/accuracies":%g}`, i, .69+loss*x+.01*wave(i), margin*x+.02*wave(3*i), map[bool]float64{true: .9, false: .1}[margin > 0])
		})
	}
	require.Empty(t, text(t, "m.jsonl", row(.03, -.01)).top)
	require.Equal(t, []string{"PREFERENCE-SIGN"}, text(t, "m.jsonl", row(-.03, -.01)).fails)
	require.Empty(t, text(t, "m.jsonl", row(-.03, .005)).fails, "another data set is learned worse")
}

// A short run has no ten lines in a row, and its evidence does not speak of them.
func TestShortRunWithLargeKL(t *testing.T) {
	j := text(t, "m.jsonl", lines(4, func(i int) string {
		return fmt.Sprintf(`{"step":%d,"actor/pg_loss":0.1,"actor/ppo_kl":%g,"critic/score/mean":%g}`, i, .3+.01*wave(i), .1*float64(i))
	}))
	require.Equal(t, []string{"C12"}, j.top)
	require.NotContains(t, j.report.Brief.Findings[0].Evidence, "NaN")
}

// A log of names that nobody knows decides nothing; where one of them names a loss that is what was looked at, and the report says so.
func TestNamesThatNobodyKnows(t *testing.T) {
	j := text(t, "m.csv", "Wall time,Value\n1.5,2.25\n2.5,2.125\n3.5,2\n")
	require.Equal(t, check.ExitNothing, j.exit)
	j = text(t, "m.csv", "step,train_loss_step,val_acc\n1,2.25,\n2,2.125,\n3,2,0.5\n")
	require.Equal(t, check.ExitPass, j.exit)
	require.Contains(t, j.report.Brief.Clean, "no metric of the dictionary")
	require.NotContains(t, j.report.Brief.Clean, "nothing unhealthy")
	require.Equal(t, []string{"NONFINITE"}, text(t, "m.csv", "step,train_loss_step,val_acc\n1,2.25,\n2,nan,\n3,2,0.5\n").fails)
}
