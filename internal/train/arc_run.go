package train

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"plumbline/internal/dataset"
	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
	"plumbline/internal/rng"
	"plumbline/internal/rundir"
	"plumbline/reference/ad"
)

// Streams of random numbers of this trainer.
const (
	streamArcNoise = iota + 40
	streamArcProject
	streamArcTable // and those after it, one for every size
)

// encoderPrefix begins the names of the text encoder's weights.
const encoderPrefix = "qwen.transformer."

// Groups of the optimiser, by the names of source document D.
const (
	groupAgent  = "agent"
	groupQwen   = "qwen"
	groupEFE    = "efe_loss"
	groupPolicy = "policy_rl"
)

func sizeOf(h, w int) string { return fmt.Sprintf("%dx%d", h, w) }

// perEpoch returns the batches of an epoch.
func (r *arcRun) perEpoch() int {
	if r.MaxBatches > 0 {
		return min(r.MaxBatches, len(r.pairs))
	}
	return len(r.pairs)
}

// start settles the data, the parameters of the loss and the groups of the optimiser.
func (r *arcRun) start() error {
	out := r.env.Out
	unsolved := 0
	if r.pairs, r.held, unsolved = samples(r.env.Tasks); len(r.pairs) == 0 {
		return unfit("there are no training pairs")
	}
	fmt.Fprintf(out, "data: %d tasks, %d training pairs, %d validation pairs\n", len(r.env.Tasks), len(r.pairs), len(r.held))
	if unsolved > 0 {
		fmt.Fprintf(out, "data: %d test pairs have no output and are left out of the accuracy\n", unsolved)
	}
	fmt.Fprintln(out, "Creating models...")
	r.efe, r.wanted = r.lossParams()
	params := r.agent.Params()
	for _, name := range slices.Sorted(maps.Keys(r.efe)) {
		params = append(params, *r.efe[name])
	}
	groups, err := r.group(params)
	if err != nil {
		return err
	}
	r.groups = groups
	fmt.Fprintln(out, "  [OK] All models created")
	for _, g := range r.groups {
		n := 0
		for _, p := range g.params {
			n += len(p.Data)
		}
		fmt.Fprintf(out, "optimiser group %s: %d tensors, %d numbers, lr %g\n", g.name, len(g.params), n, g.lr)
	}
	return nil
}

// lossParams makes the parameters of the loss: a table of preferences for every size of the data, and the projection of the prompt
// to the colours, as torch initialises a linear layer. They are there before the optimiser is.
func (r *arcRun) lossParams() (params map[string]*Param, wanted map[string][]float64) {
	params = map[string]*Param{}
	add := func(name string, fill func(i int) float64, shape ...int) {
		n := format.Elements(shape)
		p := &Param{Name: "efe_loss." + name, Shape: shape, Data: make([]float64, n), Grad: make([]float64, n)}
		for i := range p.Data {
			p.Data[i] = float64(float32(fill(i)))
		}
		params[name] = p
	}
	prompt := r.agent.Shape().Prompt
	project := rng.New(r.Seed, streamArcProject)
	bound := 1 / math.Sqrt(float64(prompt))
	uniform := func(i int) float64 { return (2*project.Uniform(uint64(i)) - 1) * bound }
	add("prompt_proj.weight", uniform, dataset.ArcColors, prompt)
	add("prompt_proj.bias", func(i int) float64 { return uniform(dataset.ArcColors*prompt + i) }, dataset.ArcColors)
	for _, s := range slices.Concat(r.pairs, r.held) {
		h, w := s.output.H, s.output.W
		if params["preference."+sizeOf(h, w)] == nil {
			stream := rng.New(r.Seed, streamArcTable+uint64(h*dataset.ArcSide+w))
			add("preference."+sizeOf(h, w), func(i int) float64 { return 0.02 * stream.Normal(uint64(i)) }, h, w, dataset.ArcColors)
		}
	}
	return params, map[string][]float64{}
}

// group puts every parameter into the group of the optimiser that its name says. One that belongs to none, or to a group that has
// none, would never learn (D14, H9).
func (r *arcRun) group(params []Param) ([]arcGroup, error) {
	of := func(name string) string {
		switch {
		case strings.HasPrefix(name, "agent."), strings.HasPrefix(name, "policy_rl.alpha_head."): // the share has no density: the loss teaches it
			return groupAgent
		case strings.HasPrefix(name, "qwen."):
			return groupQwen
		case strings.HasPrefix(name, "efe_loss."):
			return groupEFE
		case strings.HasPrefix(name, "policy_rl.pi_"), strings.HasPrefix(name, "policy_rl.v."), strings.HasPrefix(name, "policy_rl.phi"):
			return groupPolicy
		}
		return ""
	}
	var list []arcGroup
	seen := map[string]bool{}
	for _, g := range []struct {
		name             string
		lr, decay, limit float64
	}{{groupAgent, r.AgentLR, r.WeightDecay, r.MaxNorm}, {groupQwen, r.QwenLR, r.WeightDecay, r.MaxNorm}, {groupEFE, 0.5 * r.AgentLR, r.WeightDecay, 0},
		{groupPolicy, r.PolicyLR, 0, r.MaxNorm}} {
		var mine []Param
		for _, p := range params {
			if of(p.Name) == g.name {
				mine = append(mine, p)
				if seen[p.Name] {
					return nil, unfit("%s is in the optimiser twice", p.Name)
				}
				seen[p.Name] = true
			}
		}
		if len(mine) == 0 {
			return nil, unfit("the optimiser's group %s is empty (D14): {\"params\": %s.parameters(), \"lr\": …} is missing", g.name, g.name)
		}
		list = append(list, arcGroup{g.name, newAdam(mine, false), g.lr, g.decay, g.limit})
	}
	for _, p := range params {
		if !seen[p.Name] {
			return nil, unfit("%s is in no group of the optimiser (D14, H9): it would never learn", p.Name)
		}
	}
	none := func(prefix string) bool {
		return !slices.ContainsFunc(params, func(p Param) bool { return strings.HasPrefix(p.Name, prefix) })
	}
	switch {
	case r.EncoderTrain != EncoderFrozen && none(encoderPrefix):
		return nil, unfit("no parameter of the encoder is in the optimiser (D14): {\"params\": qwen.parameters(), \"lr\": qwen_lr}")
	case none("policy_rl.pi_mean."):
		return nil, unfit("no parameter of the policy's mean is in the optimiser (H8)")
	case none("policy_rl.v."):
		return nil, unfit("no parameter of the value is in the optimiser (H8)")
	}
	return list, nil
}

// all is the optimiser of all groups, as a checkpoint holds it.
func (r *arcRun) all() Optimizer {
	o := &adam{}
	for _, g := range r.groups {
		o.params, o.states, o.narrow = append(o.params, g.params...), append(o.states, g.states...), append(o.narrow, g.narrow...)
	}
	return o
}

// arcState is arc.json of a checkpoint.
type arcState struct {
	First    float64   `json:"first"`  // L_efe of the first batch
	Recent   []float64 `json:"recent"` // of the last ten
	ZeroFrom int       `json:"zero_from"`
	Checked  bool      `json:"checked"`
	Best     float64   `json:"best"` // what the best checkpoint has, of best_by
	BestStep int       `json:"best_step"`
}

const (
	arcStateFile = "arc.json"
	arcLossFile  = "efe_loss.safetensors" // the parameters of the loss, the target preferences and the cache
)

// files are those of a checkpoint beside the agent, the optimiser and where the run is.
func (r *arcRun) files() ([]rundir.File, error) {
	var tensors []safetensors.Tensor
	for _, name := range slices.Sorted(maps.Keys(r.efe)) {
		p := r.efe[name]
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, DType: format.F32, Shape: p.Shape, Data: p.Data})
	}
	for _, size := range slices.Sorted(maps.Keys(r.wanted)) {
		tensors = append(tensors, safetensors.Tensor{Name: "wanted." + size, DType: format.F64, Shape: r.efe["preference."+size].Shape, Data: r.wanted[size]})
	}
	var keys []string
	for key := range r.cache {
		keys = append(keys, string(key[:]))
	}
	slices.Sort(keys)
	for _, key := range keys {
		prompt := r.cache[[32]byte([]byte(key))]
		tensors = append(tensors, safetensors.Tensor{Name: "cache." + hex.EncodeToString([]byte(key)), DType: format.F64, Shape: []int{len(prompt)}, Data: prompt})
	}
	text, err := json.MarshalIndent(r.more, "", " ")
	if err != nil {
		return nil, err
	}
	return []rundir.File{{Name: arcStateFile, Write: func(w io.Writer) error { _, err := w.Write(append(text, '\n')); return err }},
		{Name: arcLossFile, Write: func(w io.Writer) error { return safetensors.Write(w, nil, tensors) }}}, nil
}

// restore reads what files wrote.
func (r *arcRun) restore(dir string) (err error) {
	path := filepath.Join(dir, arcStateFile)
	text, err := format.ReadFile(path, 1<<16)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, &r.more); err != nil {
		return format.Malformed(path, "", "%v", err)
	}
	loss, err := safetensors.Open(filepath.Join(dir, arcLossFile))
	if err != nil {
		return err
	}
	defer loss.Close()
	for _, p := range r.efe {
		if err := ReadTensor(loss, p.Name, p.Shape, p.Data); err != nil {
			return err
		}
	}
	for name := range loss.Tensors() {
		size, isWanted := strings.CutPrefix(name, "wanted.")
		digest, isCache := strings.CutPrefix(name, "cache.")
		switch {
		case isWanted && r.efe["preference."+size] != nil:
			p := r.efe["preference."+size]
			r.wanted[size] = make([]float64, len(p.Data))
			err = ReadTensor(loss, name, p.Shape, r.wanted[size])
		case isCache:
			key, bad := hex.DecodeString(digest)
			if bad != nil || len(key) != 32 {
				return format.Malformed(loss.Path, name, "is no digest of grids")
			}
			n := r.agent.Shape().Prompt
			r.cache[[32]byte(key)] = make([]float64, n)
			err = ReadTensor(loss, name, []int{n}, r.cache[[32]byte(key)])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// validation is what the agent can do with pairs that it does not learn from.
type validation struct {
	right, before, cells, solved, pairs int
	changes                             [][2]float64 // of each pair: right cells that the refinement adds, cells
}

func (v validation) accuracy() float64 { return float64(v.right) / float64(max(1, v.cells)) }
func (v validation) delta() float64    { return float64(v.right-v.before) / float64(max(1, v.cells)) }

// deltaError is the standard error of delta over the pairs, that of a ratio of sums Σd/Σn: √(P/(P − 1)·Σ(d − delta·n)²)/Σn; of two pairs at least.
func (v validation) deltaError() float64 {
	var sum float64
	for _, c := range v.changes {
		miss := c[0] - v.delta()*c[1]
		sum += miss * miss
	}
	pairs := float64(v.pairs)
	return math.Sqrt(pairs/(pairs-1)*sum) / float64(max(1, v.cells))
}

// validate predicts the held-out pairs, with the mean of the policy and without a graph. The prompt is made of the input and the
// task's training pairs.
func (r *arcRun) validate() (v validation, err error) {
	shape := r.agent.Shape()
	for _, s := range r.held {
		tape := &ad.Tape{}
		net := r.agent.On(tape, false)
		vector := func(x []float64) *ad.Var { return tape.Const(x, len(x)) }
		prompt := net.PromptOf(r.agent.Encode(s.sentence()))
		if err := finite(r.run.Step, "validation prompt", prompt.Data(), nil); err != nil {
			return v, err
		}
		refined := net.Refine(prompt, vector(s.control(shape.Control)), vector(s.features(shape.Features)), vector(make([]float64, shape.Prompt)))
		before, after := net.Predict(s.input, prompt), net.Predict(s.input, refined.Prompt)
		n, h, w := len(s.output.Cells), s.output.H, s.output.W
		wrong, first := errorsIn(net.Grid(after, h, w), s.output), errorsIn(net.Grid(before, h, w), s.output)
		v.cells, v.right, v.before, v.pairs = v.cells+n, v.right+n-wrong, v.before+n-first, v.pairs+1
		v.changes = append(v.changes, [2]float64{float64(first - wrong), float64(n)})
		if wrong == 0 && after.Shape()[1] == h && after.Shape()[2] == w {
			v.solved++
		}
	}
	return v, nil
}

func (v validation) report(out io.Writer, epoch int, took time.Duration) {
	if v.pairs > 0 {
		fmt.Fprintf(out, "[Epoch %d] Val Accuracy: %.4f (%d/%d)\n[Epoch %d] Accuracy Delta: %+.4f\n", epoch, v.accuracy(), v.right, v.cells, epoch, v.delta())
	}
	fmt.Fprintf(out, "[Epoch %d] Time: %.1fs\n", epoch, took.Seconds())
}

func (v validation) line(step, epoch int) []rundir.Field {
	list := []rundir.Field{{Key: "step", Value: step}, {Key: "epoch", Value: epoch}, {Key: "event", Value: "validation"}, {Key: "val_accuracy", Value: v.accuracy()},
		{Key: "accuracy_delta", Value: v.delta()}, {Key: "cells", Value: v.cells}, {Key: "solved", Value: v.solved}, {Key: "pairs", Value: v.pairs}}
	if v.pairs > 1 {
		list = append(list, rundir.Field{Key: "accuracy_delta_error", Value: v.deltaError()})
	}
	return list
}

// keepBest saves the agent in best/ if no epoch was better, and says in best_metadata.json what it is the best by.
func (r *arcRun) keepBest(v validation, epoch int) error {
	by := v.accuracy()
	if r.BestBy == "accuracy_delta" {
		by = v.delta()
	}
	if v.pairs == 0 || r.more.BestStep > 0 && !(by > r.more.Best) {
		return nil
	}
	r.more.Best, r.more.BestStep = by, r.run.Step
	name := fmt.Sprintf("step_%d", r.run.Step)
	if err := r.run.saveIn(r.best, name); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	text, err := json.MarshalIndent(map[string]any{"checkpoint": "best/" + name, "epoch": epoch, "best_by": r.BestBy, "accuracy": v.accuracy(), "accuracy_delta": v.delta(), "solved": v.solved}, "", " ")
	if err != nil {
		return err
	}
	return format.WriteOwn(r.env.Run.Path(), "best_metadata.json", func(w io.Writer) error { _, err := w.Write(append(text, '\n')); return err })
}

// line is the line of a batch in metrics.jsonl.
func (b *arcBatch) line(step, epoch, batch int) []rundir.Field {
	e, p := b.terms, b.policy
	fields := []rundir.Field{{Key: "step", Value: step}, {Key: "epoch", Value: epoch}, {Key: "batch", Value: batch}, {Key: "task", Value: b.sample.task}, {Key: "fresh_prompt", Value: b.fresh}}
	for _, f := range []struct {
		key   string
		value float64
	}{
		{"reward", b.reward}, {"loss", b.loss}, {"qwen_grad", b.qwen}, {"mask_ratio", b.mask}, {"accuracy_before", b.before}, {"accuracy_after", b.after},
		{"hard_cell", b.factor}, {"curriculum", b.weight}, {"efe", e.Total}, {"efe/grid_matching", e.GridMatching}, {"efe/risk", e.ScaledRisk}, {"efe/inference_risk", e.Uncertain},
		{"efe/ambiguity", e.Ambiguity}, {"efe/step", e.Step}, {"efe/bidirectional", e.Bidirectional}, {"efe/divergence", e.Divergence}, {"efe/reversibility", e.Reversibility},
		{"efe/z", e.Z}, {"efe/prompt", e.Prompt}, {"efe/grid_norm", e.GridNorm}, {"grad_norm/agent", b.norms[groupAgent]}, {"grad_norm/qwen", b.norms[groupQwen]},
		{"grad_norm/efe_loss", b.norms[groupEFE]}, {"grad_norm/pi_mean", p.mean}, {"grad_norm/value", p.valueGrad}, {"policy/loss", p.loss}, {"policy/logp", p.logp},
		{"policy/value", p.value}, {"policy/advantage", p.advantage}, {"policy/entropy", p.entropy}, {"policy/icm", p.icm},
		{"time_encoder_ms", b.encoderMS}, {"time_step_ms", b.stepMS},
	} {
		fields = append(fields, rundir.Field{Key: f.key, Value: f.value})
	}
	return fields
}
