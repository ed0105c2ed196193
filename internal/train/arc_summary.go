package train

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"

	"plumbline/internal/rundir"
)

// arcLine is a line of metrics.jsonl as the summary reads it.
type arcLine struct {
	Step       int     `json:"step"`
	Epoch      int     `json:"epoch"`
	Event      string  `json:"event"`
	Fresh      bool    `json:"fresh_prompt"`
	Reward     float64 `json:"reward"`
	Loss       float64 `json:"loss"`
	Qwen       float64 `json:"qwen_grad"`
	Mask       float64 `json:"mask_ratio"`
	EFE        float64 `json:"efe"`
	Hard       float64 `json:"hard_cell"`
	Curriculum float64 `json:"curriculum"`
	Accuracy   float64 `json:"val_accuracy"`
	Delta      float64 `json:"accuracy_delta"`
	DeltaError float64 `json:"accuracy_delta_error"`
	Pairs      int     `json:"pairs"`
	Encoder    float64 `json:"time_encoder_ms"`
	Time       float64 `json:"time_step_ms"`
}

// finding is a line of the summary: OK, NOTE, WARN or FAIL, or n/a where there is too little to tell.
type finding struct{ verdict, text string }

// summary prints what the source's document looks at, from metrics.jsonl: its healthy indicators and its red flags with their values.
// It is an error if one of them is a FAIL.
func (r *arcRun) summary() error {
	lines, err := rundir.ReadLog(filepath.Join(r.env.Run.Path(), "metrics.jsonl"))
	if err != nil {
		return err
	}
	var batches, epochs []arcLine
	for _, l := range lines {
		var m arcLine
		if err := json.Unmarshal(l.Text, &m); err != nil {
			return fmt.Errorf("metrics.jsonl, step %d: %w", l.Step, err)
		}
		if m.Event == "validation" {
			epochs = append(epochs, m)
		} else {
			batches = append(batches, m)
		}
	}
	if len(batches) == 0 {
		return nil
	}
	failed := ""
	fmt.Fprintln(r.env.Out, "\nSummary")
	for _, f := range redFlags(batches, epochs, r.EncoderTrain == EncoderFrozen) {
		fmt.Fprintf(r.env.Out, "  [%s] %s\n", f.verdict, f.text)
		if f.verdict == "FAIL" && failed == "" {
			failed = f.text
		}
	}
	if failed != "" {
		return unfit("%s", failed)
	}
	return nil
}

// redFlags judges a run as faults.md 1.D does.
func redFlags(batches, epochs []arcLine, frozen bool) (list []finding) {
	say := func(verdict, format string, a ...any) {
		list = append(list, finding{verdict, fmt.Sprintf(format, a...)})
	}
	at := func(f func(arcLine) float64) (x []float64) {
		for _, b := range batches {
			x = append(x, f(b))
		}
		return x
	}

	// Qwen_grad, of the batches that made their prompt: 0 on the others by design.
	var first, low, high float64
	fresh, nonzero, since := 0, 0, 0
	low = math.Inf(1)
	span := 0
	for _, b := range batches {
		if !b.Fresh {
			continue
		}
		if fresh++; fresh == 1 {
			first = b.Qwen
		}
		if b.Qwen != 0 {
			nonzero, since = nonzero+1, 0
			low, high = min(low, b.Qwen), max(high, b.Qwen)
			continue
		}
		since = cmp.Or(since, b.Step)
		span = max(span, b.Step-since)
	}
	switch {
	case frozen:
		say("n/a", "Qwen_grad: the encoder is frozen")
	case span >= 100:
		say("FAIL", "Qwen_grad: 0.00e+00 for %d batches (D2, D14): gradients do not flow, check the optimiser", span)
	case nonzero == 0:
		say("WARN", "Qwen_grad: 0.00e+00 in all %d batches that made their prompt (D20)", fresh)
	default:
		say("OK", "Qwen_grad: nonzero in %d of %d batches that made their prompt, %.2e in the first", nonzero, fresh, first)
		if low < 1e-6 || high > 1e-4 {
			verdict := "NOTE"
			if high > 1e3 {
				verdict = "WARN"
			}
			say(verdict, "Qwen_grad: from %.2e to %.2e, the source's healthy range is 1e-6 to 1e-4 (D8); norms before clipping of 1.56 were published", low, high)
		}
	}

	// Trends of the last batches, of the loss without its weights and its reward.
	falls := func(id, name string, window int, x []float64) {
		n := min(window, len(x))
		if n < 10 {
			say("n/a", "%s: %d batches are too few for a trend", name, n)
			return
		}
		if s := slope(x[len(x)-n:]); s < 0 {
			say("OK", "%s: slope %.2e a batch over the last %d", name, s, n)
		} else if n < window {
			say("n/a", "%s: slope %.2e a batch over %d, %d are wanted", name, s, n, window)
		} else {
			say("WARN", "%s: slope %.2e a batch over the last %d (%s): flat or increasing, check the learning rates", name, s, n, id)
		}
	}
	falls("D9", "Loss", 200, at(func(b arcLine) float64 { return (b.Loss + 0.3*b.Reward) / (0.7 * b.Curriculum * b.Hard) }))
	falls("D12", "Mask_ratio", 300, at(func(b arcLine) float64 { return b.Mask }))

	rewards := at(func(b arcLine) float64 { return b.Reward })
	zeros, run, top := 0, 0, 0.0
	for _, x := range rewards {
		if run++; x != 0 {
			run = 0
		}
		zeros, top = max(zeros, run), max(top, math.Abs(x))
	}
	tail := mean(rewards[len(rewards)-len(rewards)/3:])
	switch {
	case zeros >= 100:
		say("WARN", "Reward: exactly 0 for %d batches (D11): the refinement changes no prediction, or one is compared with itself", zeros)
	case top < 1e-3 && top > 0:
		say("NOTE", "Reward: below 1e-3 everywhere (D5): is it scaled by 5?")
	case tail > 0:
		say("OK", "Reward: mean of the last third %+.4f", tail)
	default:
		say("NOTE", "Reward: mean of the last third %+.4f, not positive", tail)
	}
	if k := len(epochs) - 1; k >= 0 && epochs[k].Pairs > 1 {
		say("NOTE", "Refinement: changes the accuracy by %+.4f ± %.4f in the last epoch, on %d pairs that were not learned from", epochs[k].Delta, epochs[k].DeltaError, epochs[k].Pairs)
	}

	if b := batches[0]; b.Loss > 3.6 && b.Reward == 0 && b.Mask == 1 {
		say("WARN", "Loss: %.4f in the first batch with reward 0 and mask_ratio 1 (D7): the curriculum's 0.6 is not applied", b.Loss)
	}

	if len(epochs) > 2 {
		later := epochs[2].Accuracy
		if len(epochs) > 3 {
			later = max(later, epochs[3].Accuracy)
		}
		if later > epochs[0].Accuracy {
			say("OK", "Val accuracy: %.4f in epoch 0, %.4f by epoch 2 or 3, %.4f in the last", epochs[0].Accuracy, later, epochs[len(epochs)-1].Accuracy)
		} else {
			say("WARN", "Val accuracy: %.4f in epoch 0, %.4f by epoch 2 or 3 (D13): it does not rise", epochs[0].Accuracy, later)
		}
	} else {
		say("n/a", "Val accuracy: %d epochs are too few for a trend", len(epochs))
	}
	return append(list, cacheFinding(batches))
}

// cacheFinding says what the cache saves. With f, the share of a batch that making the prompt takes, the speed is 1/(1 − 0.9·f) times
// that without a cache.
func cacheFinding(batches []arcLine) finding {
	var made, used struct{ n, encoder, time float64 }
	for _, b := range batches {
		to := &used
		if b.Fresh {
			to = &made
		}
		to.n, to.encoder, to.time = to.n+1, to.encoder+b.Encoder, to.time+b.Time
	}
	if made.time == 0 || used.n > 0 && used.time == 0 {
		return finding{"n/a", "Cache: no time was measured"}
	}
	if used.n == 0 {
		text := fmt.Sprintf("Cache: no prompt was used again; the encoder's forward pass takes %.0f%% of a batch", 100*made.encoder/made.time)
		if made.encoder > .5*made.time {
			return finding{"NOTE", text + " (D6): cache_every=10 gives 2 to 3 times the speed"}
		}
		return finding{"OK", text}
	}
	with, without := (made.time+used.time)/(made.n+used.n), made.time/made.n
	f := 1 - used.time/used.n/without
	return finding{"OK", fmt.Sprintf("Cache: %.0f of %.0f prompts were used again; %.1f ms a batch, %.1f ms without it: %.2f times the speed. The encoder takes %.0f%%, which allows 1/(1 - 0.9f) = %.2f",
		used.n, used.n+made.n, with, without, without/with, 100*f, 1/(1-0.9*f))}
}

// slope is that of the least-squares line through x at 0, 1, 2, …
func slope(x []float64) float64 {
	n, m := float64(len(x)), mean(x)
	var xy, xx float64
	for i, v := range x {
		d := float64(i) - (n-1)/2
		xy, xx = xy+d*(v-m), xx+d*d
	}
	return xy / xx
}
