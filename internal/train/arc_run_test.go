package train_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/dataset"
	"plumbline/internal/rundir"
	"plumbline/internal/train"
	"plumbline/reference/ad"
)

// The cache: a prompt that is known is a constant but in every tenth batch; its gradient is 0 there by design (H12).
func TestArcCache(t *testing.T) {
	c := arc("epochs=3", "max_batches=0", "cache_every=4")
	w := newArcWatch(t, c)
	o := runArc(t, c, w, arcTasks(1)) // 8 pairs
	require.NoError(t, o.err)
	lines, _ := o.lines(t)
	require.Len(t, lines, 24)
	fresh := 0
	for i, l := range lines {
		want := i < 8 || i%8%4 == 0
		require.Equal(t, want, l["fresh_prompt"], "batch %d", i)
		require.Equal(t, want, l["qwen_grad"].(float64) > 0)
		if want {
			fresh++
		}
	}
	prompts := 0
	for _, e := range w.events {
		if e == "PromptOf" {
			prompts++
		}
	}
	require.Equal(t, fresh+3*2, prompts, "validation makes its own")
	require.Regexp(t, `Cache: 12 of 24 prompts were used again; .* times the speed`, o.out)

	c = arc("epochs=2", "cache_every=1")
	o = runArc(t, c, newArcWatch(t, c), arcTasks(1))
	require.NoError(t, o.err)
	lines, _ = o.lines(t)
	for _, l := range lines {
		require.Equal(t, true, l["fresh_prompt"])
	}
	require.Contains(t, o.out, "Cache: no prompt was used again")
}

// The bugs of the document, planted in the agent, are named.
func TestArcNamesFaults(t *testing.T) {
	run := func(replace func(n *arcWatchNet), overrides ...string) arcOutcome {
		c := arc(overrides...)
		w := newArcWatch(t, c)
		w.replace = replace
		return runArc(t, c, w, arcTasks(1))
	}
	detached := func(n *arcWatchNet) { n.prompt = ad.Detach }
	o := run(detached)
	require.NoError(t, o.err)
	require.Contains(t, o.warned, "step 1: Qwen_grad is 0.00e+00 though the prompt was made in this batch (D2, D16, D20)")
	require.Contains(t, o.out, "[WARN] Qwen_grad: 0.00e+00 in all 4 batches that made their prompt (D20)")
	require.Equal(t, 1, strings.Count(o.warned, "Qwen_grad"), "said once")
	o = run(detached, "grad_check=true")
	require.ErrorContains(t, o.err, "no gradient reaches qwen.transformer.layers[0] (D17)")
	require.Contains(t, o.out, "Qwen gradients flowing? False\n")
	o = run(nil, "grad_check=true")
	require.NoError(t, o.err)
	require.Equal(t, 1, strings.Count(o.out, "Qwen gradients flowing? True\n"))
	require.Empty(t, o.warned)

	o = run(func(n *arcWatchNet) {
		n.predict = ad.Detach
		n.refine = func(r train.ArcRefinement) train.ArcRefinement { r.Prompt = ad.Detach(r.Prompt); return r }
	})
	require.ErrorContains(t, o.err, "the loss has no gradient path (D18)")
	o = run(func(n *arcWatchNet) { n.evaluate = ad.Detach })
	require.NoError(t, o.err)
	require.Contains(t, o.warned, "the gradient of the policy's mean is 0 and of its value 0 (H8)")

	var bad *train.NotFiniteError
	o = run(func(n *arcWatchNet) { n.prompt = func(x *ad.Var) *ad.Var { return ad.Scale(x, math.NaN()) } })
	require.ErrorAs(t, o.err, &bad)
	require.Equal(t, "prompt", bad.Tensor)
	o = run(func(n *arcWatchNet) { n.predict = func(x *ad.Var) *ad.Var { return ad.Scale(x, math.Inf(1)) } })
	require.ErrorAs(t, o.err, &bad)
	require.Equal(t, "logits", bad.Tensor)
	o = run(nil, "agent_lr=1e6", "max_batches=0", "epochs=4", "max_grad_norm=0")
	require.Error(t, o.err)
	require.Regexp(t, `the loss explodes \(D19\).*reduce qwen_lr from 5e-5 to 1e-5|training stops, the last checkpoint is good`, o.err.Error())
}

// A run whose encoder never gets a gradient stops after 100 batches (D2). A frozen one does not.
func TestArcZeroGradient(t *testing.T) {
	c := arc("epochs=30", "max_batches=0")
	w := newArcWatch(t, c)
	w.replace = func(n *arcWatchNet) { n.prompt = ad.Detach }
	o := runArc(t, c, w, arcTasks(1))
	require.ErrorContains(t, o.err, "steps 1 to 101: Qwen_grad: 0.00e+00 for 100 batches (D2)")

	c = arc("encoder.train=frozen")
	o = runArc(t, c, newArcWatch(t, c), arcTasks(1))
	require.NoError(t, o.err)
	require.Contains(t, o.out, "[n/a] Qwen_grad: the encoder is frozen")
	lines, _ := o.lines(t)
	require.Equal(t, 0., lines[0]["qwen_grad"])
	require.Positive(t, lines[0]["grad_norm/qwen"], "the projection is trained")
}

// Every parameter is in one group of the optimiser, and every group has some (D14, H9).
func TestArcGroups(t *testing.T) {
	c := arc("qwen_lr=2e-3")
	for _, f := range []struct {
		plant func(w *arcWatch)
		says  string
	}{
		{func(w *arcWatch) {
			w.extra = []train.Param{{Name: "rule.weight", Data: []float64{1}, Grad: []float64{0}, Shape: []int{1}}}
		}, "rule.weight is in no group of the optimiser (D14, H9)"},
		{func(w *arcWatch) { w.without = "qwen." }, "the optimiser's group qwen is empty (D14)"},
		{func(w *arcWatch) { w.without = "qwen.transformer." }, "no parameter of the encoder is in the optimiser (D14)"},
		{func(w *arcWatch) { w.without = "policy_rl.v." }, "no parameter of the value is in the optimiser (H8)"},
	} {
		w := newArcWatch(t, c)
		f.plant(w)
		o := runArc(t, c, w, arcTasks(1))
		require.ErrorContains(t, o.err, f.says)
	}
	w := newArcWatch(t, c)
	o := runArc(t, c, w, arcTasks(1))
	require.NoError(t, o.err)
	for _, line := range []string{`optimiser group agent: \d+ tensors, \d+ numbers, lr 0.001`, `optimiser group qwen: .*, lr 0.002`, `optimiser group efe_loss: .*, lr 0.0005`, `optimiser group policy_rl: .*, lr 0.001`} {
		require.Regexp(t, line, o.out)
	}
	// Every tensor of the agent is trained, but for the networks of a curiosity that has no weight.
	moved := 0
	fresh := newArcWatch(t, c)
	for i, p := range w.ArcAgent.Params() {
		require.False(t, slices.Equal(p.Data, fresh.ArcAgent.Params()[i].Data), "%s never moves", p.Name)
		moved++
	}
	require.Greater(t, moved, 60)
	// The same sentence has the same prompt in every forward pass.
	net := func() []float64 { return w.On(&ad.Tape{}, false).PromptOf(w.Encode("all cells stay")).Data() }
	require.Equal(t, net(), net())
}

// The lines are those of the document, to the character.
func TestArcLines(t *testing.T) {
	c := arc("epochs=2", "max_batches=5", "log_every=3")
	o := runArc(t, c, newArcWatch(t, c), arcTasks(1))
	require.NoError(t, o.err)
	number := `-?\d+\.\d{4}`
	batch := `\[Batch %4d\] Reward: +` + number + ` \| Loss: +` + number + ` \| Qwen_grad: \d\.\d\de[-+]\d\d \| Mask_ratio: [01]\.\d{4}\n`
	var want strings.Builder
	want.WriteString(`Creating models\.\.\.\n  \[OK\] All models created\n(optimiser group .*\n){4}\nStarting complete training\.\.\.\n`)
	for epoch := range 2 {
		fmt.Fprintf(&want, `\nEpoch %d \(All Fixes\):   0%%%% 0/5\n`+batch+`\nEpoch %d \(All Fixes\):  60%%%% 3/5\n`+batch, epoch, 0, epoch, 3)
		fmt.Fprintf(&want, `\[Epoch %d\] Val Accuracy: 0\.\d{4} \(\d+/\d+\)\n\[Epoch %d\] Accuracy Delta: [-+]0\.\d{4}\n\[Epoch %d\] Time: \d+\.\ds\n`, epoch, epoch, epoch)
	}
	want.WriteString(`\nSummary\n`)
	require.Regexp(t, regexp.MustCompile(strings.ReplaceAll(want.String(), "%%", "%")), o.out)
	for _, l := range regexp.MustCompile(`(?m)^\[Batch.*`).FindAllString(o.out, -1) {
		require.Regexp(t, `^\[Batch    [03]\] Reward: [- ]\d\.\d{4} \| Loss: [- ]\d\.\d{4} \| `, l)
	}
	lines, epochs := o.lines(t)
	require.Len(t, lines, 10)
	require.Len(t, epochs, 2)
	require.Contains(t, o.out, fmt.Sprintf("Loss: %7.4f | Qwen_grad: %.2e", lines[0]["loss"], lines[0]["qwen_grad"]))
	require.Contains(t, o.out, fmt.Sprintf("[Epoch 1] Val Accuracy: %.4f", epochs[1]["val_accuracy"]))
}

// A run that is stopped and goes on leaves the files of one that was not, byte for byte, whenever it is stopped.
func TestArcResume(t *testing.T) {
	tasks := arcTasks(2)
	files := func(dir string) map[string]string {
		all := map[string]string{}
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			require.NoError(t, err)
			name, _ := filepath.Rel(dir, path)
			if (strings.HasPrefix(name, "final") || strings.HasPrefix(name, "best")) && !strings.Contains(name, ".aside-") {
				if text, err := os.ReadFile(path); err == nil && d.Name() != "LOCK" && d.Name() != "MANIFEST.json" { // which names the checkpoint before
					all[name] = string(text)
				}
			}
			return nil
		}))
		return all
	}
	numbers := func(o arcOutcome) (list []string) {
		for _, m := range (outcome{dir: o.dir}).lines(t) {
			delete(m, "time_step_ms")
			delete(m, "time_encoder_ms")
			text, err := json.Marshal(m)
			require.NoError(t, err)
			list = append(list, string(text))
		}
		return list
	}
	settings := []string{"epochs=3", "max_batches=5", "cache_every=3", "keep=0"}
	whole := runArc(t, arc(settings...), newArcWatch(t, arc()), tasks)
	require.NoError(t, whole.err)
	require.Contains(t, files(whole.dir), "final/arc.json")
	require.Contains(t, files(whole.dir), "best_metadata.json")
	for i, stops := range []int{5, 1, 8} {
		if i%cases.Every != 0 {
			continue
		}
		dir := filepath.Join(t.TempDir(), "run")
		for {
			ctx, cancel := context.WithCancel(context.Background())
			w, seen := newArcWatch(t, arc()), 0
			w.onEvent = func(e string) {
				if e == "Evaluate" {
					if seen++; seen == stops {
						cancel()
					}
				}
			}
			o := runArcIn(ctx, t, dir, arc(settings...), w, tasks)
			cancel()
			if o.err == nil {
				require.Equal(t, numbers(whole), numbers(o))
				break
			}
			require.ErrorIs(t, o.err, train.ErrInterrupted)
		}
		require.Equal(t, files(whole.dir), files(dir), "stopped after every %d batches", stops)
	}
	// A process that died long after its last checkpoint: the log and the best one are ahead of what is gone on from.
	o := runArc(t, arc(append(settings, "save_every=2")...), newArcWatch(t, arc()), tasks)
	require.NoError(t, o.err)
	for step := 4; step < 15; step += 2 {
		require.NoError(t, os.RemoveAll(filepath.Join(o.dir, fmt.Sprintf("step_%d", step))))
	}
	require.NoError(t, os.RemoveAll(filepath.Join(o.dir, "final")))
	again := runArcIn(context.Background(), t, o.dir, arc(append(settings, "save_every=0")...), newArcWatch(t, arc()), tasks)
	require.NoError(t, again.err)
	require.Equal(t, numbers(whole), numbers(again))
	require.Equal(t, files(whole.dir), files(o.dir))
}

// The best checkpoint is that of the epoch with the highest accuracy, the first of equals, and can be read.
func TestArcBest(t *testing.T) {
	c := arc("epochs=6", "max_batches=0", "agent_lr=0.01")
	o := runArc(t, c, newArcWatch(t, c), arcTasks(2))
	require.NoError(t, o.err)
	_, epochs := o.lines(t)
	require.Len(t, epochs, 6)
	best := 0
	for i, e := range epochs {
		if e["val_accuracy"].(float64) > epochs[best]["val_accuracy"].(float64) {
			best = i
		}
	}
	text, err := os.ReadFile(filepath.Join(o.dir, "best_metadata.json"))
	require.NoError(t, err)
	var about struct {
		Checkpoint string
		Epoch      int
		Accuracy   float64
	}
	require.NoError(t, json.Unmarshal(text, &about))
	require.Equal(t, best, about.Epoch)
	require.Equal(t, epochs[best]["val_accuracy"], about.Accuracy)
	require.Equal(t, fmt.Sprintf("best/step_%d", 16*(best+1)), about.Checkpoint)
	_, err = rundir.Verify(filepath.Join(o.dir, about.Checkpoint))
	require.NoError(t, err)
	entries, err := filepath.Glob(filepath.Join(o.dir, "best", "step_*"))
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.NotEqual(t, epochs[0]["val_accuracy"], about.Accuracy, "it learns")
}

// The tables of preferences are there before the optimiser is, for every size of the data, and hold what D.3 says: the target
// preference begins as uniform and is moved by 0.05 + 0.15·accuracy.
func TestArcPreferences(t *testing.T) {
	c := arc("max_batches=2", "agent_lr=0", "qwen_lr=0", "policy_lr=0", "weight_decay=0")
	task := dataset.ArcTask{Name: "t", Train: []dataset.ArcPair{{Input: dataset.Grid{H: 1, W: 2, Cells: []int{1, 2}}, Output: dataset.Grid{H: 2, W: 1, Cells: []int{3, 4}}},
		{Input: dataset.Grid{H: 1, W: 2, Cells: []int{1, 2}}, Output: dataset.Grid{H: 2, W: 1, Cells: []int{3, 4}}}}}
	o := runArc(t, c, newArcWatch(t, c), []dataset.ArcTask{task})
	require.NoError(t, o.err)
	lines, _ := o.lines(t)
	require.Equal(t, 0., lines[0]["efe/z"], "no target preference yet")
	rate := .05 + .15*lines[0]["accuracy_after"].(float64)
	kl := 0. // of (uniform, moved towards the target) from C, which is uniform but for 0.02
	for c := range 10 {
		w := .1 * (1 - rate)
		if c == 3 {
			w += rate
		}
		kl += 2 * w * math.Log(w/.1)
	}
	require.InDelta(t, kl/20, lines[1]["efe/z"], 1e-3)
	require.NotContains(t, o.out, "Val Accuracy", "no test pairs")
	require.Contains(t, o.out, "[n/a] Val accuracy")
}
