package runlog_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Releases of verl before 0.4 print three digits: a learning rate of 1e-6 is 0.000, and so is a gradient norm below 0.0005.
func TestNumbersOfThreeDigits(t *testing.T) {
	row := func(lr, norm string) string {
		return lines(30, func(i int) string {
			return fmt.Sprintf("step:%d - actor/kl_loss:0.00%d - actor/entropy_loss:0.4%d0 - actor/pg_loss:%.3f - actor/pg_clipfrac:0.000 - actor/ppo_kl:-0.000 - actor/grad_norm:%s - actor/lr:%s - critic/score/mean:%.3f",
				i+1, i/15, i%3, .1*wave(i), norm, lr, .3+.01*wave(i))
		})
	}
	require.Empty(t, text(t, "v.log", row("0.000", "0.352")).top)
	require.Empty(t, text(t, "v.log", row("0.000", "0.000")).top)
	require.Equal(t, []string{"LR-ZERO"}, text(t, "v.log", row("0.0", "0.352")).fails)
	require.Equal(t, []string{"GRAD-ZERO"}, text(t, "v.log", row("1e-06", "0.0")).fails)
	require.Equal(t, []string{"LR-ZERO"}, text(t, "v.log", row("0.000e+00", "0.352")).fails)
}

// float16's scaler begins too high: the gradients of the first steps overflow, and it skips them. A step that was not skipped makes the
// weights NaN, and every loss after it.
func TestStepsThatAScalerSkips(t *testing.T) {
	sft := func(norm func(i int) string, loss func(i int) string) string {
		return lines(60, func(i int) string {
			return fmt.Sprintf("{'loss': %s, 'grad_norm': %s, 'learning_rate': %g, 'epoch': %g}", loss(i), norm(i), 1e-5*float64(i)/60, .01*float64(i+1))
		})
	}
	finite := func(i int) string { return fmt.Sprintf("%.4f", 2.5-.02*float64(i)+.01*wave(i)) }
	at := func(bad string, steps ...int) func(int) string {
		return func(i int) string {
			for _, s := range steps {
				if i == s {
					return bad
				}
			}
			return fmt.Sprintf("%.4f", 1.2+.1*wave(i))
		}
	}
	require.Empty(t, text(t, "s.log", sft(at("nan", 0, 1), finite)).top)
	require.Empty(t, text(t, "s.log", sft(at("inf", 0, 1, 2), finite)).top)
	require.Contains(t, text(t, "s.log", sft(at("nan", 0, 1), finite)).all, "NONFINITE")
	later := text(t, "s.log", sft(at("nan", 34, 50), finite))
	require.Equal(t, []string{"NONFINITE"}, later.top)
	require.Empty(t, later.fails, "a step that was skipped")
	require.Equal(t, []string{"NONFINITE"}, text(t, "s.log", sft(func(i int) string {
		if i > 20 {
			return "nan"
		}
		return "1.2"
	}, finite)).fails)
	require.NotEmpty(t, text(t, "s.log", sft(at("nan", 20), func(i int) string {
		if i > 20 {
			return "nan"
		}
		return finite(i)
	})).fails)
}

// verl makes no step of a norm that is not finite, and DeepSpeed none in float16.
func TestStepsThatVerlLeavesOut(t *testing.T) {
	verl := func(bad func(i int) bool) string {
		return lines(60, func(i int) string {
			norm := fmt.Sprint(.3 + .01*wave(i))
			if bad(i) {
				norm = "nan"
			}
			return fmt.Sprintf("step:%d - actor/pg_loss:%g - actor/grad_norm:%s - actor/lr:1e-06 - critic/score/mean:%g", i+1, .02*wave(i), norm, .3+.01*wave(i))
		})
	}
	once := text(t, "v.log", verl(func(i int) bool { return i == 40 }))
	require.Equal(t, []string{"NONFINITE"}, once.top)
	require.Empty(t, once.fails)
	require.Equal(t, []string{"NONFINITE"}, text(t, "v.log", verl(func(i int) bool { return i > 40 })).fails)
	require.Equal(t, []string{"NONFINITE"}, text(t, "v.log", verl(func(i int) bool { return i%4 > 0 && i < 59 })).fails, "most steps")
}

// 18 GiB are the limit of an int8 base on the guide's card, and nothing to a card that has more of them.
func TestMemoryOfLargeCards(t *testing.T) {
	smi := func(used, total int) string {
		return "timestamp, name, memory.used [MiB], memory.total [MiB]\n" + lines(20, func(i int) string {
			return fmt.Sprintf("2026/02/03 11:00:%02d.000, GPU, %d MiB, %d MiB", i, used+i, total)
		})
	}
	require.Empty(t, text(t, "m.csv", smi(71000, 81559)).top)
	require.Equal(t, []string{"A9"}, text(t, "m.csv", smi(71000, 81559), "int8=true").fails)
	require.Equal(t, []string{"A9"}, text(t, "m.csv", smi(19000, 24564), "load_in_8bit=true").fails)
	small := text(t, "m.csv", smi(19000, 24564))
	require.Equal(t, []string{"A9"}, small.top)
	require.Empty(t, small.fails, "no configuration says that the base is int8")
	require.Empty(t, text(t, "m.csv", smi(19000, 24564), "int8=false").top)
}

// A run that has learned its task stands still at the end of its schedule.
func TestPolicyThatHasLearned(t *testing.T) {
	run := func(reward func(i int) float64) string {
		return lines(120, func(i int) string {
			return ppoLine(i, map[string]float64{"params/approx_kl": 2e-5 * (1 + .3*wave(i)), "rollout/reward_mean": reward(i)})
		})
	}
	flat := func(i int) float64 { return .3 + .001*wave(i) }
	require.Equal(t, []string{"C7"}, text(t, "m.jsonl", run(flat)).top)
	require.Empty(t, text(t, "m.jsonl", run(func(i int) float64 { return math.Tanh(float64(i)/15) + .001*wave(i) })).top)
}

// Without a configuration the notes' own is taken, in which the reference is a copy of the generator.
func TestFirstKLOfTheNotes(t *testing.T) {
	run := func(kl float64) string {
		return fmt.Sprintf("[Micro 0] 3. Samples scored: mem=100 MB, time=0.700s, rewards=0.5000±0.2000\n[Micro 0] 4. Loss computed: mem=100 MB, time=1.500s, pg_loss=-0.100000, kl=%.6f, total=%.6f", kl, kl-.1) + "\niter 0: loss -0.0800 (main -0.0800, critic 0.0000), time 2300.00ms\n"
	}
	require.Equal(t, []string{"H7a"}, text(t, "g.log", run(.034)).top)
	require.Empty(t, text(t, "g.log", run(.034)).fails)
	require.Empty(t, text(t, "g.log", run(0)).top)
	require.Empty(t, text(t, "g.log", run(.034), "reference_checkpoint=other.pt").top)
}

// TRL adds the reward of its PPO from the score and what the KL costs.
func TestRewardOfTRLsPPO(t *testing.T) {
	ppo := func(sign float64) string {
		return lines(12, func(i int) string {
			score, other := .2+.01*float64(i), -.03-.001*float64(i)
			return fmt.Sprintf("{'objective/kl': 0.6, 'objective/non_score_reward': %.7f, 'objective/rlhf_reward': %.7f, 'objective/scores': %.7f, 'policy/approxkl_avg': 0.004, 'policy/clipfrac_avg': 0.02, 'loss/value_avg': 0.1, 'val/ratio': %g, 'lr': 1e-06, 'episode': %d}",
				other, score+sign*other, score, 1+.001*wave(i), 64*(i+1))
		})
	}
	require.Empty(t, text(t, "p.log", ppo(1)).top)
	require.Equal(t, []string{"REWARD-SUM"}, text(t, "p.log", ppo(-1)).fails)
}

// A policy that has a KL to its reference is not stuck there, however little an update moves it.
func TestPolicyThatHasLeftItsReference(t *testing.T) {
	verl := func(kl float64) string {
		return lines(60, func(i int) string {
			return fmt.Sprintf("step:%d - actor/kl_loss:%g - actor/pg_loss:%g - actor/ppo_kl:%g - actor/pg_clipfrac:0.0003 - actor/grad_norm:0.3 - actor/lr:1e-06 - critic/score/mean:%g - response_length/mean:300",
				i+1, kl*(1+.1*wave(i)), .02*wave(i), 2e-5*wave(7*i), .6+.002*wave(3*i))
		})
	}
	require.Empty(t, text(t, "v.log", verl(.003)).top)
	require.Equal(t, []string{"C7"}, text(t, "v.log", verl(2e-7)).top)
}

// A policy is stuck where 50 lines say so: a KL that fewer lines have says nothing, however many have the reward.
func TestPolicyThatIsStuckForFiftyLines(t *testing.T) {
	run := func(n int) string {
		return lines(80, func(i int) string {
			kl := ""
			if i >= 80-n {
				kl = fmt.Sprintf(" - actor/ppo_kl:%g", 2e-5*wave(7*i))
			}
			return fmt.Sprintf("step:%d - actor/pg_loss:%g%s - actor/grad_norm:0.3 - actor/lr:1e-06 - critic/score/mean:%g - response_length/mean:300", i+1, .02*wave(i), kl, .6+.002*wave(3*i))
		})
	}
	require.Empty(t, text(t, "v.log", run(49)).top)
	require.Equal(t, []string{"C7"}, text(t, "v.log", run(50)).top)
}

// k2, k3 and |k1| are not negative at any token: what is in verl's loss and negative is k1, whose expected gradient is 0.
func TestNegativeKLOfVerl(t *testing.T) {
	verl := func(kl float64) string {
		return lines(12, func(i int) string {
			return fmt.Sprintf("step:%d - actor/kl_loss:%g - actor/pg_loss:%g - actor/grad_norm:0.3 - actor/lr:1e-06", i+1, kl*(1+.1*wave(i)), .02*wave(i))
		})
	}
	const name = "actor_rollout_ref.actor.kl_loss_type="
	require.Equal(t, []string{"KL-NEGATIVE"}, text(t, "v.log", verl(-.004), name+"low_var_kl").fails)
	require.Equal(t, []string{"KL-NEGATIVE"}, text(t, "v.log", verl(-.004), name+"k3+").fails)
	require.Equal(t, []string{"H7c"}, text(t, "v.log", verl(-.004)).top)
	require.Equal(t, []string{"H7c"}, text(t, "v.log", verl(-.004), name+"kl").top)
	require.Empty(t, text(t, "v.log", verl(-.004), name+"k1+").top, "its gradient is that of k2")
	require.Empty(t, text(t, "v.log", verl(-1e-8)).top, "rounding")
	require.Empty(t, text(t, "v.log", verl(.004)).top)
}

// Messages of memory and of NaN that other devices and libraries raise.
func TestOtherMessages(t *testing.T) {
	for message, id := range map[string]string{
		"torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.":                                                      "A4",
		"RuntimeError: MPS backend out of memory (MPS allocated: 17.9 GB, other allocations: 1.2 GB, max allowed: 18.1 GB).":          "A4",
		"RuntimeError: NPU out of memory. Tried to allocate 1.16 GiB (NPU 0; 60.97 GiB total capacity)":                               "A4",
		"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`":                                    "A4",
		"ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.": "A4",
		"RuntimeError: probability tensor contains either `inf`, `nan` or element < 0":                                                "NONFINITE",
		"RuntimeError: Function 'LogSoftmaxBackward0' returned nan values in its 0th output.":                                         "NONFINITE",
		"Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.":                              "NONFINITE",
	} {
		got := text(t, "a.log", "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n"+message+"\n")
		require.Equal(t, []string{id}, got.top, message)
		require.Equal(t, []string{id}, got.fails, message)
	}
}
