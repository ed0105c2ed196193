package runlog_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// At a learning rate of 0 nothing has moved, and no ratio differs from 1; later it may.
func TestRatioBeforeAnyUpdate(t *testing.T) {
	row := func(kl, clip float64) string {
		return lines(20, func(i int) string {
			lr, k, c := 1e-7*float64(max(0, i-1)), .002*wave(i)*wave(i), .01
			if i < 2 {
				k, c = kl, clip
			}
			return fmt.Sprintf(`{"step":%d,"actor/ppo_kl":%g,"actor/pg_clipfrac":%g,"actor/lr":%g,"critic/score/mean":%g}`, i+1, k, c, lr, .1+.01*float64(i))
		})
	}
	require.Empty(t, text(t, "m.jsonl", row(3e-4, 0)).top, "rounding")
	require.Equal(t, []string{"RATIO-FIRST"}, text(t, "m.jsonl", row(.03, 0)).fails)
	require.Equal(t, []string{"RATIO-FIRST"}, text(t, "m.jsonl", row(-.03, 0)).fails)
	require.Equal(t, []string{"RATIO-FIRST"}, text(t, "m.jsonl", row(0, .05)).fails)
}

// The epochs over a rollout move away from it: a KL that is as large in the first as in the second was there before.
func TestRatioOfFirstEpochs(t *testing.T) {
	row := func(perEpoch int, kl func(step, epoch int) float64) string {
		return fmt.Sprintf("effective batch 16, %d updates per epoch, %d per step, 80 in all\n", perEpoch, 2*perEpoch) + lines(16, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"epoch":%d,"loss/policy":0.01,"loss/value":0.01,"params/policy_clip_frac":0.01,"params/approx_kl":%g,"params/grad_norm":1,"rollout/reward_mean":%g}`, i/2+1, 1+i%2, kl(i/2, i%2), .01*float64(i/2))
		})
	}
	require.Equal(t, []string{"RATIO-FIRST"}, text(t, "m.jsonl", row(1, func(int, int) float64 { return .02 })).fails)
	require.Empty(t, text(t, "m.jsonl", row(1, func(_, epoch int) float64 { return .02 * float64(epoch) })).top)
	require.Equal(t, []string{"RATIO-FIRST"}, text(t, "m.jsonl", row(4, func(step, _ int) float64 { return .05 + .001*wave(step) })).top)
	require.Empty(t, text(t, "m.jsonl", row(4, func(_, epoch int) float64 { return .01 + .06*float64(epoch) })).top)
}

// TRL's first update of num_iterations has a ratio of 1, so that nothing is clipped in it.
func TestRatioOfFirstIterations(t *testing.T) {
	row := func(first float64) string {
		return lines(24, func(i int) string {
			clip := .05
			if i%2 == 0 {
				clip = first
			}
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"reward":%g,"completions/mean_length":9,"clip_ratio/region_mean":%g}`, i+1, .1*float64(i), clip)
		})
	}
	require.Equal(t, []string{"RATIO-FIRST"}, text(t, "m.jsonl", row(.04), "num_iterations=2").fails)
	require.Empty(t, text(t, "m.jsonl", row(0), "num_iterations=2").top)
	require.Empty(t, text(t, "m.jsonl", row(.04)).top, "without the option no line is known to be a first one")
	require.Empty(t, text(t, "m.jsonl", row(.04), "num_iterations=2", "steps_per_generation=8").top)
}

// With several passes over a rollout a ratio of exactly 1 in all of them is that of old log-probs made anew.
func TestRatioStuckOverPasses(t *testing.T) {
	row := func(kl float64) string {
		return lines(8, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"actor/ppo_kl":%g,"actor/lr":1e-6,"critic/score/mean":%g}`, i+1, kl, .1*float64(i))
		})
	}
	require.Equal(t, []string{"RATIO-STUCK"}, text(t, "m.jsonl", row(0), "actor.ppo_epochs=3").top)
	require.Empty(t, text(t, "m.jsonl", row(0), "actor.ppo_epochs=1").top)
	require.Empty(t, text(t, "m.jsonl", row(1e-5), "actor.ppo_epochs=3").top)
}

// A policy that has not moved and is not its reference.
func TestReferenceInTheFirstLine(t *testing.T) {
	row := func(step int, kl, clip float64) string {
		return lines(12, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"actor/ppo_kl":0.0001,"actor/pg_clipfrac":%g,"actor/kl_loss":%g,"critic/score/mean":%g}`, step+i, clip, kl, .1*float64(i))
		})
	}
	require.Equal(t, []string{"H1"}, text(t, "m.jsonl", row(1, .4, 0)).top)
	require.Empty(t, text(t, "m.jsonl", row(1, .02, 0)).top)
	require.Empty(t, text(t, "m.jsonl", row(400, .4, 0)).top, "a resumed run")
	require.Empty(t, text(t, "m.jsonl", row(1, .4, .1)).top, "many updates in the first step")
}

// A gap to the engine that begins with the first update is one of weights; one that is there from the start may be rounding.
func TestEngineGapAfterTheFirstStep(t *testing.T) {
	row := func(name string, first, later float64) string {
		return lines(14, func(i int) string {
			v := later * (1 + .1*wave(i))
			if i == 0 {
				v = first
			}
			return fmt.Sprintf(`{"step":%d,"actor/ppo_kl":0.0001,%q:%g,"critic/score/mean":%g}`, i+1, name, v, .1*float64(i))
		})
	}
	for name, v := range map[string]float64{"training/rollout_probs_diff_mean": .02, "rollout_corr/k3_kl": .01, "rollout_corr/kl": .01} {
		require.Equal(t, []string{"ENGINE-GAP"}, text(t, "m.jsonl", row(name, 0, v)).top, name)
		require.Empty(t, text(t, "m.jsonl", row(name, v/3, v)).top, name)
		require.Empty(t, text(t, "m.jsonl", row(name, 0, 1e-5)).top, name)
	}
}

// Three micro-batches and two to an update make two updates in an epoch, the second of what is left; one update leaves it.
func TestLeftoverMicroBatches(t *testing.T) {
	row := func(updates int) string {
		return fmt.Sprintf("effective batch 8, %d updates per epoch, %d per step, 80 in all\n", updates, updates) + lines(6, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"epoch":1,"loss/policy":0.01,"params/approx_kl":0.0,"params/grad_norm":1,"rollout/reward_mean":%g}`, i+1, .1*float64(i))
		})
	}
	sizes := []string{"ppo.rollout_samples=12", "ppo.mini_batch_size=4", "ppo.gradient_accumulation_steps=2"}
	require.Equal(t, []string{"H13d"}, text(t, "log.txt", row(1), sizes...).top)
	require.Empty(t, text(t, "log.txt", row(2), sizes...).top)
}

// −H under the name of an entropy is a convention where the program is unknown, and a bug where it is known to log +H; beyond ln V both are.
func TestSignOfEntropy(t *testing.T) {
	row := func(v float64, more string) string {
		return lines(8, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"entropy":%g%s}`, i, v+.01*wave(i), more)
		})
	}
	j := text(t, "m.jsonl", row(-2, ""))
	require.Empty(t, j.top)
	require.Contains(t, j.all, "C21")
	require.NotContains(t, text(t, "m.jsonl", row(2, "")).all, "C21")
	require.Equal(t, []string{"ENTROPY-RANGE"}, text(t, "m.jsonl", row(-2, `,"completions/mean_length":9`)).fails)
	require.NotEmpty(t, text(t, "m.jsonl", row(-40, "")).top)
	require.Equal(t, []string{"ENTROPY-RANGE"}, text(t, "m.jsonl", lines(8, func(i int) string {
		return fmt.Sprintf(`{"step":%d,"actor_lr":1e-6,"ppo_kl":0.001,"entropy_loss":%g}`, i, 44+wave(i))
	})).fails)
}

// A reward that falls by more than its scatter allows; noise and a rise do not.
func TestRewardThatFalls(t *testing.T) {
	row := func(reward func(i int) float64) string {
		return lines(60, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"reward":%g,"completions/mean_length":9,"learning_rate":1e-5}`, i+1, reward(i))
		})
	}
	require.Equal(t, []string{"C10"}, text(t, "m.jsonl", row(func(i int) float64 { return .5 - .004*float64(i) + .02*wave(i) })).top)
	require.Empty(t, text(t, "m.jsonl", row(func(i int) float64 { return .5 + .2*wave(i*i) })).top)
	require.Empty(t, text(t, "m.jsonl", row(func(i int) float64 { return .5 - .0005*float64(i) + .05*wave(i*i) })).top)
	require.Empty(t, text(t, "m.jsonl", row(func(i int) float64 { return .3 + .004*float64(i) })).top)
}

// No float32 weight of usual size moves at 1e-13; at 1e-8 small ones do.
func TestTinyLearningRate(t *testing.T) {
	row := func(lr float64) string {
		return lines(8, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":%g,"grad_norm":1.5,"learning_rate":%g}`, i, 2-.01*float64(i), lr*float64(i+1))
		})
	}
	require.Equal(t, []string{"LR-ZERO"}, text(t, "m.jsonl", row(1e-13)).top)
	require.Empty(t, text(t, "m.jsonl", row(1e-8)).top)
}

// Advantages of exactly 0 explain a gradient of 0, and advantages divided by 1e-6 one that is large.
func TestAdvantagesExplainGradients(t *testing.T) {
	row := func(a, norm float64) string {
		return lines(8, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"actor/pg_loss":0.0,"actor/grad_norm":%g,"critic/advantages/max":%g,"critic/advantages/min":%g,"critic/score/mean":0.5}`, i+1, norm, a, -a)
		})
	}
	require.Equal(t, []string{"ZERO-STD"}, text(t, "m.jsonl", row(0, 0)).top)
	require.Equal(t, []string{"ADV-SCALE"}, text(t, "m.jsonl", row(5e5, 8e4)).top)
	require.Equal(t, []string{"GRAD-ZERO"}, text(t, "m.jsonl", row(1.5, 0)).top)
}

// The margin of a preference loss is β times what the log-probs move: β below 0 raises it while they fall.
func TestSignOfBeta(t *testing.T) {
	row := func(sign float64) string {
		return lines(30, func(i int) string {
			up := 3 * math.Tanh(float64(i)/10)
			return fmt.Sprintf(`{"step":%d,"loss":%g,"grad_norm":1,"learning_rate":1e-5,"rewards/chosen":%g,"rewards/rejected":%g,"rewards/margins":%g,"rewards/accuracies":0.9,"logps/chosen":%g,"logps/rejected":%g}`,
				i+1, .7-.02*float64(i), (up+.05*wave(i))/2, -(up+.05*wave(i))/2, up+.05*wave(i), -20+sign*4*up+.3*wave(i*i), -20-sign*4*up+.3*wave(7*i))
		})
	}
	require.Equal(t, []string{"PREFERENCE-SIGN"}, text(t, "m.jsonl", row(-1)).fails)
	require.Empty(t, text(t, "m.jsonl", row(1)).top)
}

// The console of transformers' Trainer has epochs and no steps: two runs in one file have every epoch twice, a resumed one goes back once.
func TestEpochsWithoutSteps(t *testing.T) {
	row := func(i int, loss float64) string {
		return fmt.Sprintf("{'loss': %.4g, 'grad_norm': 1.2, 'learning_rate': 1e-05, 'epoch': %.3g}\n", loss, .025*float64(i+1))
	}
	one, two, back := "", "", ""
	for i := range 14 {
		one += row(i, 2-.1*float64(i))
		two += row(i, 2-.1*float64(i)) + row(i, 2.3-.1*float64(i))
	}
	for i := range 10 {
		back += row(i, 2-.1*float64(i))
	}
	for i := 7; i < 14; i++ {
		back += row(i, 2-.1*float64(i))
	}
	require.Empty(t, text(t, "log.txt", one).all)
	require.Equal(t, []string{"TWO-RUNS"}, text(t, "log.txt", two).top)
	require.Contains(t, text(t, "log.txt", back).all, "STEPS-RESUMED")
}

// A reward function that scored every step and then none.
func TestRewardFunctionThatStops(t *testing.T) {
	row := func(from int) string {
		return lines(14, func(i int) string {
			a := fmt.Sprint(.1 + .01*float64(i))
			if i >= from {
				a = "null"
			}
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"reward":%g,"rewards/a/mean":%s,"rewards/b/mean":0.3,"completions/mean_length":9}`, i+1, .4+.01*float64(i), a)
		})
	}
	require.Equal(t, []string{"NONFINITE"}, text(t, "m.jsonl", row(9)).top)
	require.NotContains(t, text(t, "m.jsonl", row(13)).top, "NONFINITE")
}

// A total that falls by its scatter alone is no fall: the gradient norm is said, and nothing of C15.
func TestTotalThatFalls(t *testing.T) {
	row := func(total func(i int) float64) string {
		return lines(30, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"epoch":1,"loss/policy":0.01,"loss/total":%g,"loss/value":0.01,"params/policy_clip_frac":0.01,"params/approx_kl":0.001,"params/grad_norm":%g,"rollout/reward_mean":%g}`, i+1, total(i), 20+wave(i), .01*float64(i))
		})
	}
	require.Equal(t, []string{"C15"}, text(t, "m.jsonl", row(func(i int) float64 { return .5 - .01*float64(i) + .02*wave(i) })).top)
	require.Equal(t, []string{"C14"}, text(t, "m.jsonl", row(func(i int) float64 { return .1*wave(i*i) - 1e-4*float64(i) })).top)
}

// The first loss of an ARC run less its share of the reward: 0.7·0.6·L_efe with the curriculum's factor, 0.7·L_efe without.
func TestFirstLossOfCurriculum(t *testing.T) {
	row := func(loss, reward float64) string {
		return lines(12, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"epoch":0,"batch":%d,"reward":%g,"loss":%g,"qwen_grad":1e-5,"mask_ratio":1,"hard_cell":1}`, i+1, i, reward, loss-.01*float64(i))
		})
	}
	require.Equal(t, []string{"D7"}, text(t, "m.jsonl", row(4.32, -.047)).top)
	require.Equal(t, []string{"D7"}, text(t, "m.jsonl", row(4.7, 0)).top)
	require.Empty(t, text(t, "m.jsonl", row(2.6, -.047)).top)
	require.Empty(t, text(t, "m.jsonl", row(3.7, -1)).top)
}

// A KL between engine and trainer is judged as the mean |Δ| is that it belongs to.
func TestEngineKL(t *testing.T) {
	row := func(name string, v float64) string {
		return lines(14, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"actor/ppo_kl":0.0001,%q:%g,"critic/score/mean":%g}`, i+1, name, v*(1+.1*wave(i)), .1*float64(i))
		})
	}
	for _, name := range []string{"rollout_corr/kl", "rollout_corr/k3_kl"} {
		require.Equal(t, []string{"ENGINE-GAP"}, text(t, "m.jsonl", row(name, .025)).top, name)
		require.Empty(t, text(t, "m.jsonl", row(name, .006)).top, name)
	}
}

// A reward that is gone after a few steps, as with advantages of the wrong sign and a large learning rate; one good step is none.
func TestRewardThatCollapses(t *testing.T) {
	row := func(reward func(i int) float64) string {
		return lines(45, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"loss":0.1,"reward":%g,"completions/mean_length":9,"learning_rate":1e-3}`, i+1, reward(i))
		})
	}
	gone := func(n int) func(i int) float64 {
		return func(i int) float64 {
			if i < n {
				return .6 + .1*wave(i)
			}
			return .004 * math.Abs(wave(i))
		}
	}
	require.Equal(t, []string{"C10"}, text(t, "m.jsonl", row(gone(5))).top)
	require.Empty(t, text(t, "m.jsonl", row(gone(1))).top)
}

// A KL coefficient of 0 is said where the KL is large, and only there.
func TestNoKLCoefficient(t *testing.T) {
	row := func(kl float64) string {
		return lines(24, func(i int) string {
			return fmt.Sprintf(`{"step":%d,"epoch":1,"loss/policy":0.01,"loss/value":0.01,"params/policy_clip_frac":0.01,"params/approx_kl":%g,"params/grad_norm":1,"rollout/reward_mean":%g}`, i+1, kl*(1+.1*wave(i)), .01*float64(i))
		})
	}
	require.Equal(t, "C7", text(t, "m.jsonl", row(.3), "ppo.kl_coeff=0").top[0])
	require.NotContains(t, text(t, "m.jsonl", row(.3), "ppo.kl_coeff=0.05").top, "C7")
	require.Empty(t, text(t, "m.jsonl", row(.004), "ppo.kl_coeff=0").top)
}

// int8 layers spread over several devices; one device, another map, or the advice of a trainer that runs on one, are silent.
func TestInt8OverDevices(t *testing.T) {
	log := lines(12, func(i int) string {
		return fmt.Sprintf("step %d/12 loss -0.1 loss_pg -0.1 loss_kl 0.000100 kl 0.002000 ratio_mean 1.000000 reward_mean %.4f grad_norm 0.02 time_project_ms 0.1 of 900", i+1, .1*float64(i))
	})
	require.Equal(t, []string{"A6"}, text(t, "log.txt", log, "model.load_in_8bit=True", "model.device_map=auto", "gpus=2").fails)
	require.Empty(t, text(t, "log.txt", log, "int8=true", "device_map=auto", "gpus=1").top)
	require.Empty(t, text(t, "log.txt", log, "int8=true", "device_map=cpu", "gpus=2").top)
	require.Empty(t, text(t, "log.txt", log, "int8=false", "device_map=auto", "gpus=2").top)
	require.Empty(t, text(t, "log.txt", "train: device_map auto with int8 (A6): on several devices generation hangs; CUDA_VISIBLE_DEVICES=0\n"+log).top)
	require.Equal(t, []string{"A6"}, text(t, "log.txt", log+"WARNING: generation hangs since step 12\n").fails)
}
