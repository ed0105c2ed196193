package train

import (
	"errors"
	"fmt"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/internal/format/safetensors"
	"plumbline/reference/rl"
)

// shieldedDump collects the numbers of one update, a file for every micro-batch. A nil one collects nothing.
type shieldedDump struct {
	r     *shieldedRun
	a     *answers
	step  int
	parts []shieldedPart
	moved *Updated // nil until the optimiser has stepped
}

type shieldedPart struct {
	index      []int
	batch      rl.PolicyBatch
	res        rl.PolicyResult
	k3         []float64
	pg, klMean float64
}

func (r *shieldedRun) dumper(a *answers) *shieldedDump {
	if r.Dump.Every == 0 || r.Updates%r.Dump.Every != 0 {
		return nil
	}
	return &shieldedDump{r: r, a: a, step: r.Updates + 1}
}

func (d *shieldedDump) add(index []int, b rl.PolicyBatch, res rl.PolicyResult, k3 []float64, pg, kl float64) {
	if d != nil {
		d.parts = append(d.parts, shieldedPart{index, b, res, k3, pg, kl})
	}
}

// write writes what was collected, also of an update that failed.
func (d *shieldedDump) write() error {
	if d == nil {
		return nil
	}
	err := d.r.Dump.step(d.r.env.Env, d.step, len(d.parts), func(path string, k int) error { return d.writePart(path, k, d.parts[k]) })
	return errors.Join(d.writeGradients(), err)
}

// writeGradients writes the gradient of the update, raw and projected, and what was added to the parameters, in a folder of their own beside
// the dumps, by the names of PEFT: what verify projection takes as --grad, --projected and --update.
func (d *shieldedDump) writeGradients() error {
	if d.moved == nil {
		return nil
	}
	for _, set := range []struct {
		name string
		v    [][]float64
	}{{"raw", d.moved.Raw}, {"projected", d.moved.Projected}, {"update", d.moved.Added}} {
		if set.v == nil {
			continue
		}
		path, err := d.r.Dump.path(d.r.env.Env, fmt.Sprintf("gradients/step_%06d_%s.safetensors", d.step, set.name))
		if err != nil {
			return err
		}
		var tensors []safetensors.Tensor
		for i, p := range d.r.params {
			tensors = append(tensors, safetensors.Tensor{Name: peftPrefix + p.Name, DType: format.F64, Shape: p.Shape, Data: set.v[i]})
		}
		if err := safetensors.WriteFile(path, nil, tensors); err != nil {
			return err
		}
	}
	return nil
}

func (d *shieldedDump) writePart(path string, k int, p shieldedPart) error {
	r, a, rows, cols := d.r, d.a, p.batch.Rows, p.batch.Cols
	fileKL, err := rl.MaskedMean(p.k3, p.batch.Mask, rl.MeanOptions{Outside: rl.OutsideIgnore}) // over the tokens of the file, not of the update
	if err != nil {
		return err
	}
	meta := dump.Meta{
		Framework: "plumbline", Version: "1", Algorithm: "shielded", Profile: "shielded@1", Step: d.step, WorldSize: 1, MicroBatch: k, MicroBatches: len(d.parts),
		ComputeDType: "float64", DLogpScale: 1, ScalarsScope: "micro_batch",
		Options: []dump.Option{
			{Name: "kl.beta", Value: r.KLBeta}, {Name: "clip.low", Value: r.ClipEps}, {Name: "clip.high", Value: r.ClipEps},
			{Name: "optim.epochs", Value: float64(r.InnerEpochs)}, {Name: "optim.lr", Value: r.LR}, {Name: "logp.temperature", Value: 1.0},
			{Name: "proj.passes", Value: float64(r.Projection.Passes)},
		},
		Scalars: []dump.Scalar{{Name: "loss_pg", Value: p.pg}, {Name: "loss_kl", Value: r.KLBeta * p.klMean}, {Name: "kl", Value: fileKL}},
	}
	token := func(name string, x []float64) *dump.Tensor { return perToken(name, format.F64, rows, cols, x) }
	width := a.batch.Prompt + cols
	ids := make([]float64, 0, rows*cols)
	var lengths, scores []float64
	for _, i := range p.index {
		for _, id := range a.batch.IDs[i*width+a.batch.Prompt : (i+1)*width] {
			ids = append(ids, float64(id))
		}
		lengths, scores = append(lengths, float64(a.promptLen[i])), append(scores, a.scores[i])
	}
	return dump.WriteFile(path, meta,
		dump.NewMask("response_mask", rows, cols, p.batch.Mask),
		perToken("response_ids", format.I32, rows, cols, ids),
		perRow("prompt_len", format.I32, lengths), perRow("scores", format.F64, scores),
		token("logp_new", p.batch.LogProbs), token("logp_old", p.batch.Old), token("logp_ref", p.batch.Ref), token("kl", p.k3),
		token("advantages", p.batch.Adv), token("dlogp", p.res.DLogp),
		perFile("pg_loss", p.pg), perFile("kl_loss", p.klMean), perFile("loss", p.pg+float64(r.KLBeta*p.klMean)))
}
