package train

import (
	"fmt"

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
	target := b.sample.output.Cells
	n, colors := len(target), dataset.ArcColors
	last := logits[len(logits)-n*colors:]
	ids, labels := make([]float64, n), make([]bool, n)
	for i, v := range target {
		ids[i], labels[i] = float64(v), true
	}
	meta := dump.Meta{Framework: "plumbline", Version: "1", Algorithm: "sft", Step: step, WorldSize: 1, MicroBatches: 1, ComputeDType: "float64", DLogpScale: 1, ScalarsScope: "micro_batch",
		Options: []dump.Option{{Name: "optim.lr", Value: r.AgentLR}, {Name: "logp.temperature", Value: 1.0}}, Scalars: []dump.Scalar{{Name: "loss", Value: b.terms.GridMatching}}}
	return r.Dump.write(r.env.Env, step, []string{fmt.Sprintf("step_%06d.safetensors", step)}, func(path string, _ int) error {
		return dump.WriteFile(path, meta, dump.NewMask("labels_mask", 1, n, labels), perToken("response_ids", format.I32, 1, n, ids),
			&dump.Tensor{Name: "logits", Layout: dump.PerToken, Width: colors, Shape: []int{1, n, colors}, Data: last, Type: format.F64},
			perToken("logp_new", format.F64, 1, n, rl.LogProbs(nil, last, target, colors, rl.LogProbOptions{})), perToken("entropy", format.F64, 1, n, rl.Entropy(nil, last, colors, rl.EntropyOptions{})),
			perFile("loss", b.terms.GridMatching))
	})
}
