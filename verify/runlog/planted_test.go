package runlog_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the third set of planted logs (golden/gen/logs/planted.py) taught: each rule with the healthy numbers beside those of the fault.
func TestPlantedThirdSet(t *testing.T) {
	verl := func(n int, more func(i int) string) string {
		return lines(n, func(i int) string {
			return fmt.Sprintf("step:%d - actor/pg_loss:%g - actor/grad_norm:0.5 - critic/score/mean:%g%s", i+1, .01*wave(i), .6+.01*wave(i), more(i))
		})
	}
	one := func(format string, v func(i int) float64) func(i int) string {
		return func(i int) string { return fmt.Sprintf(format, v(i)) }
	}
	group := []string{"actor_rollout_ref.rollout.n=8", "algorithm.adv_estimator=grpo"}
	rate := func(end int) func(i int) string {
		return one(" - actor/lr:%g", func(i int) float64 { return 1e-6 * math.Max(0, 1-float64(i)/float64(end)) })
	}
	gap := func(rise, entropy float64) func(i int) string {
		return func(i int) string {
			return fmt.Sprintf(" - rollout_corr/k3_kl:%g - actor/entropy:%g", 4e-5*(1+.1*wave(i))*math.Exp(rise*float64(i)/40), 2.5*(1+.01*wave(2*i))*math.Exp(entropy*float64(i)/40))
		}
	}
	critic := func(loss, explained func(i int) float64) func(i int) string {
		return func(i int) string {
			return fmt.Sprintf(" - critic/vf_loss:%g - critic/vf_explained_var:%g", loss(i), explained(i))
		}
	}
	still := func(v float64) func(i int) float64 { return func(i int) float64 { return v * (1 + .05*wave(3*i)) } }
	for _, c := range []struct {
		id, fault, healthy string
		options            []string
	}{
		{"ADV-SCALE", verl(12, one(" - critic/advantages/max:%g", func(i int) float64 { return 3 + wave(i) })), verl(12, one(" - critic/advantages/max:%g", func(i int) float64 { return 2.4748 - .3*math.Abs(wave(i)) })), group},
		{"LR-ZERO", verl(40, rate(20)), verl(40, rate(40)), nil},
		{"ENGINE-GAP", verl(45, gap(4, 0)), verl(45, gap(.5, 0)), nil},
		{"ENGINE-GAP", verl(45, gap(4, 0)), verl(45, gap(4, .8)), nil},
		{"C11", verl(40, critic(func(i int) float64 { return .1 + .02*float64(i) }, func(i int) float64 { return .02 * wave(i) })), verl(40, critic(still(.1), func(i int) float64 { return .02 * wave(i) })), nil},
		{"C11", verl(40, critic(still(.1), func(int) float64 { return 0 })), verl(40, critic(still(.1), func(i int) float64 { return .3 + .01*wave(i) })), nil},
		{"C13", verl(40, one(" - actor/pg_clipfrac:%g", func(i int) float64 { return .8 * float64(i%2) * math.Exp(-float64(i)/10) })), verl(40, one(" - actor/pg_clipfrac:%g", func(i int) float64 { return .1 * float64(i%2) })), nil},
		{"ZERO-STD", verl(12, one(" - critic/advantages/max:%g - critic/advantages/min:-1e-13", func(int) float64 { return 1e-13 })), verl(12, one(" - critic/advantages/max:%g - critic/advantages/min:-1.1", func(int) float64 { return 1.2 })), nil},
		{"ZERO-STD", verl(20, one(" - critic/advantages/max:%[1]g - critic/advantages/min:-%[1]g", func(i int) float64 { return float64(i / 18) })), verl(20, one(" - critic/advantages/max:%[1]g - critic/advantages/min:-%[1]g", func(i int) float64 { return float64(i % 2) })), nil},
		{"RATIO-STUCK", verl(12, func(i int) string { return fmt.Sprintf(" - actor/ppo_kl:0.0 - actor/lr:%g", 1e-7*float64(i)) }), verl(12, func(i int) string {
			return fmt.Sprintf(" - actor/ppo_kl:%g - actor/lr:%g", 1e-5*float64(i), 1e-7*float64(i))
		}), []string{"actor.ppo_epochs=2"}},
		{"STEPS-BACK", verl(40, func(int) string { return "" })[len(verl(20, func(int) string { return "" })):] + "\n" + verl(20, func(int) string { return "" }), verl(40, func(int) string { return "" }), nil},
	} {
		require.Contains(t, text(t, "console.log", c.fault, c.options...).top, c.id)
		require.Empty(t, text(t, "console.log", c.healthy, c.options...).top, c.id)
	}
}

// Epochs that stand in two lines are of two ranks where the learning rate is shared; not where they are rounded to two digits, as by releases of
// transformers before 4.40, or where a batch is used for two updates.
func TestEpochsInTwoLines(t *testing.T) {
	console := func(n int, epoch, rate func(i int) float64) judged {
		return text(t, "console.log", lines(n, func(i int) string {
			return fmt.Sprintf("{'loss': %.4f, 'grad_norm': 0.5, 'learning_rate': %g, 'epoch': %g}", .5+.01*wave(i), rate(i), epoch(i))
		}))
	}
	falling := func(i int) float64 { return 1e-6 * (1 - float64(i)/100) }
	shared := func(i int) float64 { return falling(i / 2) }
	constant := func(int) float64 { return 1e-6 }
	hundredths := func(i int) float64 { return float64(i/2+1) / 100 }
	eighths := func(i int) float64 { return float64(i/2+1) / 8 }
	for _, healthy := range []struct{ epoch, rate func(i int) float64 }{{hundredths, falling}, {hundredths, constant}, {eighths, falling}} {
		require.NotContains(t, console(40, healthy.epoch, healthy.rate).top, "TWO-RUNS")
	}
	zigzag := func(i int) float64 { return falling(i/2) * (1 + float64(i%2)) }
	for _, two := range []struct{ epoch, rate func(i int) float64 }{{hundredths, shared}, {eighths, shared}, {eighths, constant}, {eighths, zigzag}} {
		require.Contains(t, console(40, two.epoch, two.rate).top, "TWO-RUNS")
	}
}
