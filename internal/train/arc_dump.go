package train

import (
	"fmt"
	"os"
	"path/filepath"

	"plumbline/internal/dataset"
	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
)

// writeDump writes the supervised part of a batch, grid_matching, as a dump of algorithm sft: the cells of the target are the tokens,
// the colours the vocabulary. The other terms of the loss, the reward and the update of the policy have no place in a dump; they are
// in metrics.jsonl.
func (r *arcRun) writeDump(step int, b *arcBatch, logits []float64) error {
	if r.Dump.Every == 0 || (step-1)%r.Dump.Every != 0 {
		return nil
	}
	dir := r.Dump.Dir
	if dir == "" {
		dir = filepath.Join(r.env.Run.Path(), "dump")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	target := b.sample.output.Cells
	n, colors := len(target), dataset.ArcColors
	last := logits[len(logits)-n*colors:]
	ids, labels := make([]float64, n), make([]bool, n)
	for i, v := range target {
		ids[i], labels[i] = float64(v), true
	}
	meta := dump.Meta{Framework: "plumbline", Version: "1", Algorithm: "sft", Step: step, WorldSize: 1, MicroBatches: 1, ComputeDType: "float64", DLogpScale: 1, ScalarsScope: "micro_batch",
		Options: []dump.Option{{Name: "optim.lr", Value: r.AgentLR}, {Name: "logp.temperature", Value: 1.0}}, Scalars: []dump.Scalar{{Name: "loss", Value: b.terms.GridMatching}}}
	path := filepath.Join(dir, fmt.Sprintf("step_%06d.safetensors", step))
	err := dump.WriteFile(path, meta, dump.NewMask("labels_mask", 1, n, labels),
		&dump.Tensor{Name: "response_ids", Layout: dump.PerToken, Width: 1, Shape: []int{1, n}, Data: ids, Type: format.I32},
		&dump.Tensor{Name: "logits", Layout: dump.PerToken, Width: colors, Shape: []int{1, n, colors}, Data: last, Type: format.F64},
		&dump.Tensor{Name: "logp_new", Layout: dump.PerToken, Width: 1, Shape: []int{1, n}, Data: rl.LogProbs(nil, last, target, colors, rl.LogProbOptions{}), Type: format.F64},
		&dump.Tensor{Name: "entropy", Layout: dump.PerToken, Width: 1, Shape: []int{1, n}, Data: rl.Entropy(nil, last, colors, rl.EntropyOptions{}), Type: format.F64},
		&dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Shape: []int{}, Data: []float64{b.terms.GridMatching}, Type: format.F64})
	if err != nil || r.env.Observe == nil {
		return err
	}
	return r.env.Observe(step, []string{path})
}
