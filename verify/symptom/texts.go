package symptom

import (
	"fmt"
	"strings"
	"time"

	"plumbline/internal/format/runlog"
)

// phrase is a text that stands for a symptom: all of the words, in this order.
type phrase struct {
	id    string
	words []string // in small letters, one space between words
	but   string   // a line with this is another one: advice before anything has happened
}

// phrases are the messages of the source documents and of the libraries that they name. Upper and lower case and runs of spaces do not
// count.
var phrases = []phrase{
	{id: "A1", words: []string{"expected scalar type half but found float"}},
	{id: "A1", words: []string{"expected scalar type float but found half"}},
	{id: "A1", words: []string{"must have the same dtype, but got", "half", "float"}},
	{id: "A1", words: []string{"must have the same dtype, but got", "float", "half"}},
	{id: "A1", words: []string{"must have the same dtype, but got", "bfloat16", "float"}},
	{id: "A1", words: []string{"must have the same dtype, but got", "float", "bfloat16"}},
	{id: "A1", words: []string{"to have the same dtype, but got", "half", "float"}},
	{id: "A1", words: []string{"to have the same dtype, but got", "float", "half"}},
	{id: "A1", words: []string{"to have the same dtype, but got", "bfloat16", "float"}},
	{id: "A1", words: []string{"to have the same dtype, but got", "float", "bfloat16"}},
	{id: "A4", words: []string{"cuda out of memory"}},
	{id: "A4", words: []string{"cuda error: out of memory"}},
	{id: "A4", words: []string{"torch.outofmemoryerror"}},
	{id: "A4", words: []string{"runtimeerror", "out of memory"}},
	{id: "A4", words: []string{"cublas_status_alloc_failed"}},
	{id: "A4", words: []string{"no available memory for the cache blocks"}},
	{id: "NONFINITE", words: []string{"probability tensor contains either `inf`, `nan` or element < 0"}}, // torch.multinomial
	{id: "NONFINITE", words: []string{"function '", "returned nan values in its"}},                       // of torch's anomaly mode
	{id: "NONFINITE", words: []string{"current loss scale already at minimum"}},                          // DeepSpeed
	{id: "B1", words: []string{"all advantages are near zero"}},
	{id: "B2", words: []string{"all sequence_log_probs are near zero"}},
	{id: "H7b", words: []string{"unsupported format string passed to nonetype.__format__"}},
	{id: "D17", words: []string{"qwen gradients flowing?", "false"}},
	{id: "D3", words: []string{"backward through the graph a second time"}},
	{id: "D3", words: []string{"backward through graph a second time"}},
	{id: "D3", words: []string{"variables needed for gradient computation has been modified by an inplace operation"}},
	{id: "H11", words: []string{"attempting to unscale fp16 gradients"}},
	{id: "H11", words: []string{"_amp_foreach_non_finite_check_and_unscale_cuda", "not implemented for"}},
	{id: "D18", words: []string{"does not require grad and does not have a grad_fn"}},
	{id: "D18", words: []string{"loss has no gradient path"}},
	{id: "D1", words: []string{"expected floating point type for target with class probabilities"}},
	{id: "D1", words: []string{"expected scalar type long but found float"}},
	{id: "D1", words: []string{"expected target dtype to be long", "but got float"}},
	{id: "D1", words: []string{"expected target size"}},
	{id: "D1", words: []string{"expected input batch_size", "to match target batch_size"}},
	{id: "D1", words: []string{"indexerror: target", "is out of bounds"}},
	{id: "D1", words: []string{"assertion `t >= 0 && t < n_classes` failed"}},
	{id: "D1", words: []string{"0d or 1d target tensor expected"}},
	{id: "D1", words: []string{"runtimeerror", "kl divergence loss"}},
	{id: "D1", words: []string{"tensor dimension mismatch"}},
	{id: "D1", words: []string{"nll_loss", "not implemented for 'float'"}},
	{id: "D1", words: []string{"the size of tensor a", "must match the size of tensor b"}},
	{id: "D1", words: []string{"input and target", "shape"}},
	{id: "D1", words: []string{"size mismatch (got input", "target"}},
	{id: "B11", words: []string{"the run takes more than", "(b11)"}},
	{id: "B11", words: []string{"the loss is exactly 0 (b11)"}},
	{id: "C2", words: []string{"bitsandbytes", "error"}},
	{id: "C2", words: []string{"no module named 'bitsandbytes'"}},
	{id: "C2", words: []string{"bitsandbytes", "compiled without gpu support"}},
	{id: "C2", words: []string{"bitsandbytes", "not installed"}},
	{id: "C2", words: []string{"bitsandbytes", "not available"}},
	{id: "C2", words: []string{"requires bitsandbytes"}},
	{id: "C2", words: []string{"need to install `bitsandbytes`"}},
	{id: "C2", words: []string{"cuda setup failed"}},
	{id: "C2", words: []string{"(c2)"}},
	{id: "C1", words: []string{"no cuda gpus are available"}},
	{id: "C1", words: []string{"torch not compiled with cuda enabled"}},
	{id: "C1", words: []string{"found no nvidia driver"}},
	{id: "C1", words: []string{"cuda driver version is insufficient"}},
	{id: "C1", words: []string{"nvidia driver on your system is too old"}},
	{id: "C1", words: []string{"no kernel image is available"}},
	{id: "C1", words: []string{"torch.cuda.is_available()", "false"}},
	{id: "C1", words: []string{"nvidia-smi has failed"}},
	{id: "C1", words: []string{"cuda initialization:"}},
	{id: "C1", words: []string{"(c1)"}},
	{id: "C9", words: []string{"skip", "update", "zero reward"}},
	{id: "C9", words: []string{"skip", "update", "rewards are", "zero"}},
	{id: "C9", words: []string{"reward", "zero", "skip", "update"}},
	{id: "C9", words: []string{"reward", " 0", "skip", "update"}},
	{id: "A10", words: []string{"no trainable parameters"}},
	{id: "A10", words: []string{"trainable params: 0 "}},
	{id: "A10", words: []string{"no inf checks were recorded for this optimizer"}}, // GradScaler.step, where no parameter has a gradient
	{id: "A10", words: []string{"optimizer got an empty parameter list"}},
	{id: "STALL", words: []string{"watchdog caught collective operation timeout"}},
	{id: "A6", words: []string{"generation hangs"}, but: "on several devices generation hangs"},
	{id: "A6", words: []string{"no new token for"}},
}

// text looks for phrases in a line; understood is false where there is none.
func (w *Watch) text(row *runlog.Row) bool {
	const longest = 4096
	t := row.Text
	if len(t) > longest {
		t = t[:longest]
	}
	line := strings.Join(strings.Fields(strings.ToLower(string(t))), " ")
	found := w.clock(string(t), line, row.Line)
	if n, err := fmt.Sscanf(line, "effective batch %d, %d updates per epoch", new(int), &w.perEpoch); n == 2 && err == nil {
		found, w.perEpochLine = true, row.Line
	}
	for _, p := range phrases {
		rest, all := line, true
		for _, word := range p.words {
			_, after, ok := strings.Cut(rest, word)
			if !ok {
				all = false
				break
			}
			rest = after
		}
		if !all || p.but != "" && strings.Contains(line, p.but) {
			continue
		}
		found = true
		step := int64(-1)
		if w.hasStep {
			step = w.step
		}
		if !w.seen[p.id] {
			w.seen[p.id] = true
			w.texts = append(w.texts, hit{p.id, row.Line, step, clip(string(t))})
		}
	}
	return found
}

// clock looks at the time that a line begins with: more than a minute after a line about generation, generation hung.
func (w *Watch) clock(text, line string, number int64) bool {
	text = strings.TrimLeft(text, "[( ")
	if len(text) < 19 {
		return false
	}
	now, err := time.Parse("2006-01-02 15:04:05", strings.Replace(text[:19], "T", " ", 1))
	if err != nil {
		return false
	}
	const most = time.Minute
	if gap := now.Sub(w.lastTime); w.generating && gap > most && !w.seen["A6"] {
		w.seen["A6"] = true
		w.texts = append(w.texts, hit{"A6", number, -1, fmt.Sprintf("%s after a line about generation: %s", gap, clip(text))})
	}
	w.lastTime, w.generating = now, strings.Contains(line, "generating") || strings.Contains(line, "generation") || strings.Contains(line, "model.generate")
	return false
}

// clip is a line that can be shown.
func clip(s string) string {
	const most = 160
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
