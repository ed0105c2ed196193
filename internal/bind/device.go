package bind

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"plumbline/accel/cuda"
	device "plumbline/accel/cuda/model"
	"plumbline/accel/cuda/ptxsim"
	"plumbline/accel/lora"
	accel "plumbline/accel/model"
	"plumbline/internal/arch"
	"plumbline/internal/rng"
	"plumbline/internal/train"
	"plumbline/reference/model"
)

// The devices of [OpenDevice].
const (
	GPU       = "cuda" // an NVIDIA GPU, by its driver
	Simulator = "sim"  // the PTX of the kernels, interpreted
)

// OpenDevice opens a device by its name. Without a GPU the error of [GPU] wraps cuda.ErrNoDevice.
func OpenDevice(name string) (cuda.Device, error) {
	if name == Simulator {
		return cuda.Simulator(ptxsim.Options{}, 0), nil
	}
	return cuda.Open("", 0)
}

// simulated bounds what the simulator is asked to do: weights of the linear layers, of which each costs about that many seconds in a
// forward pass over 64 tokens (0.65 instructions of a thread for each product, some 10⁸ of them in a second).
const (
	simulatedSeconds = 64 * 0.65 / 1e8
	mostSeconds      = 2
)

// TooLargeError says that a model is too large for the simulator.
type TooLargeError struct {
	Weights int
	Seconds float64 // of a forward pass over 64 tokens, estimated
}

func (e TooLargeError) Error() string {
	return fmt.Sprintf("--policy sim interprets the kernels, which for a model of %.0f million weights would take about %.0f s for each forward pass over 64 tokens (the limit is %d s): it is for the tiny models (model.name=tiny, tiny-gptj); --policy cuda, accel or reference takes this one",
		float64(e.Weights)/1e6, e.Seconds, mostSeconds)
}

// OnDevice is a model of accel/cuda/model as a [train.Policy]: int8 codes on the device under an adapter, whose masters, optimiser and value head are
// the host's.
type OnDevice struct {
	adapted
	arch   arch.Config
	device cuda.Device
	model  *device.Model
	table  []float64 // of the embedding, see Embeddings
}

// NewOnDevice reads the weights of a base onto a device, one after the other, and makes an adapter on it trainable. It is an [UntrainedError]
// without an adapter, and a [TooLargeError] if the device is a simulator that the model would keep busy for too long.
func NewOnDevice(b *Base, d cuda.Device, o Options) (*OnDevice, error) {
	if o.Adapter == nil {
		return nil, UntrainedError{}
	}
	if d.Variant() == Simulator {
		n := 0
		for _, l := range b.Config.Linears() {
			n += l.In * l.Out
		}
		if s := float64(n) * simulatedSeconds; s > mostSeconds {
			return nil, TooLargeError{n, s}
		}
	}
	o.Fingerprint = cmp.Or(o.Fingerprint, b.Fingerprint)
	weights := b.weights
	if o.Int8 {
		weights = half(b.Config, weights)
	}
	m, err := device.New(b.Config, cuda.NewContext(d), weights)
	if err != nil {
		return nil, err
	}
	l := &OnDevice{adapted: adapted{masters: newMasters(b.reference, o)}, arch: b.Config, device: d, model: m}
	if err := l.attach(m.Attach); err != nil {
		return nil, err
	}
	return l, l.readTable(b, weights)
}

// readTable keeps the embedding as the device computes with it.
func (l *OnDevice) readTable(b *Base, weights accel.Weights) error {
	mod, _ := b.Config.Module(arch.Embedding, -1)
	w, row := lora.NewMatrix(mod.In, mod.Out, lora.W8A16), make([]float32, mod.Out)
	for i := range mod.In {
		if err := weights(mod.Weight().Name, row, i); err != nil {
			return err
		}
		w.SetRows(i, row)
	}
	for i, code := range w.Codes {
		l.table = append(l.table, float64(code)*float64(w.Scale[i/mod.Out]))
	}
	return nil
}

// Embeddings returns the table of the embedding, as the device has it, and its width.
func (l *OnDevice) Embeddings() ([]float64, int) { return l.table, l.arch.Hidden }

// Variant implements [train.Policy].
func (l *OnDevice) Variant() string { return l.device.Variant() + " " + lora.W8A16.String() }

// Device is the product's name.
func (l *OnDevice) Device() string { return l.device.Name() }

// load copies the masters to the device.
func (l *OnDevice) load() error {
	l.adapted.load()
	return errors.Join(l.model.Upload(), l.model.ZeroGrad())
}

// pack returns a batch for the device, and what of it is scored. Padding has the id 0, whatever it held.
func (l *OnDevice) pack(b train.Batch) (device.Batch, cells) {
	out := device.Batch{Rows: b.Rows, Time: b.Prompt + b.Response, IDs: slices.Clone(b.IDs), Real: b.Real}
	at := func(k int) int {
		if b.Real == nil || b.Real[k] {
			return k
		}
		return -1
	}
	for k := range out.IDs {
		if at(k) < 0 {
			out.IDs[k] = 0
		}
	}
	return out, cellsOf(b, at)
}

// run is a forward pass over a batch.
type run struct {
	pass   *device.Pass
	scores *device.Scores
	x      []float32 // states that predict
	cells  cells
	out    train.Scores
}

// forward computes the scores of a batch. The caller closes the pass.
func (l *OnDevice) forward(b train.Batch, adapted bool) (r run, err error) {
	if err := l.load(); err != nil {
		return r, err
	}
	batch, c := l.pack(b)
	if r.pass, err = l.model.Forward(batch, adapted); err != nil {
		return r, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.pass.Close())
		}
	}()
	r.cells = c
	if r.scores, err = r.pass.Score(c.before, c.targets, 1); err != nil {
		return r, err
	}
	n := b.Rows * b.Response
	r.out = train.Scores{LogProbs: c.spread(float64s(r.scores.LogProbs), n), Entropy: c.spread(float64s(r.scores.Entropies), n)}
	if h := l.head(); h != nil {
		if r.x, err = r.pass.Hidden(c.before); err != nil {
			return r, err
		}
		r.out.Values = c.spread(h.Forward(r.x), n)
	}
	return r, nil
}

func float64s(x []float32) []float64 {
	y := make([]float64, len(x))
	convert(y, x)
	return y
}

func float32s(x []float64) []float32 {
	if x == nil {
		return nil
	}
	y := make([]float32, len(x))
	convert(y, x)
	return y
}

// Score implements [train.Policy].
func (l *OnDevice) Score(b train.Batch) (train.Scores, error) {
	r, err := l.forward(b, true)
	if err != nil {
		return train.Scores{}, err
	}
	return r.out, r.pass.Close()
}

// Reference implements [train.Policy]: the model without its adapter.
func (l *OnDevice) Reference(b train.Batch) ([]float64, error) {
	r, err := l.forward(b, false)
	if err != nil {
		return nil, err
	}
	return r.out.LogProbs, r.pass.Close()
}

// Accumulate implements [train.Policy].
func (l *OnDevice) Accumulate(b train.Batch, loss func(train.Scores) (train.Slopes, error)) (err error) {
	r, err := l.forward(b, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.pass.Close()) }()
	slopes, err := loss(r.out)
	if err != nil {
		return err
	}
	c := r.cells
	dlogp := c.pick(slopes.LogProbs)
	if dlogp == nil {
		dlogp = make([]float64, len(c.at))
	}
	var dx []float32
	if h := l.head(); h != nil && slopes.Values != nil {
		dx = make([]float32, len(r.x))
		h.Backward(l.param(headWeight).Grad, &l.param(headBias).Grad[0], dx, r.x, c.pick(slopes.Values))
	}
	if err := r.scores.Backward(float32s(dlogp), float32s(c.pick(slopes.Entropy)), dx); err != nil {
		return err
	}
	if err := l.model.Download(); err != nil {
		return err
	}
	l.collect()
	return nil
}

// Sample implements [train.Policy]. The device keeps no keys and values: every token is a pass over all before it.
func (l *OnDevice) Sample(ctx context.Context, prompts train.Batch, s train.Sampling, stream rng.Stream, first, eos int, progress func(train.Drawn)) (ids [][]int, logp [][]float64, err error) {
	if err := within(l.config.MaxPositions, prompts.Rows, prompts.Prompt, prompts.Real, s.MaxNew); err != nil {
		return nil, nil, err
	}
	if err := l.load(); err != nil {
		return nil, nil, err
	}
	vocab := l.config.Vocab
	d := newDraws(prompts.Rows, vocab, s, stream, first, eos)
	for i := range prompts.Rows {
		if prompts.Real != nil && !slices.Contains(prompts.Real[i*prompts.Prompt:(i+1)*prompts.Prompt], true) || prompts.Prompt == 0 {
			return nil, nil, fmt.Errorf("row %d of the prompts has no tokens", i)
		}
	}
	wide := make([]float64, vocab)
	for d.more() {
		if err := ctx.Err(); err != nil {
			return nil, nil, err
		}
		batch, rows, last := l.soFar(prompts, d)
		logits, err := l.next(batch, last)
		if err != nil {
			return nil, nil, err
		}
		for k, i := range rows {
			convert(wide, logits[k*vocab:(k+1)*vocab])
			if _, err := d.draw(i, wide); err != nil {
				return nil, nil, err
			}
		}
		d.step(progress)
	}
	return d.ids, d.logp, nil
}

// soFar is the batch of the rows that go on, each with what was drawn, and the cell of its last token.
func (l *OnDevice) soFar(prompts train.Batch, d *draws) (b device.Batch, rows, last []int) {
	drawn := 0
	for i := range prompts.Rows {
		if !d.done[i] {
			rows, drawn = append(rows, i), max(drawn, len(d.ids[i]))
		}
	}
	b.Rows, b.Time = len(rows), prompts.Prompt+drawn
	for k, i := range rows {
		at := 0
		for j := range b.Time {
			id, isReal := 0, false
			switch n := j - prompts.Prompt; {
			case n < 0 && (prompts.Real == nil || prompts.Real[i*prompts.Prompt+j]):
				id, isReal = prompts.IDs[i*prompts.Prompt+j], true
			case n >= 0 && n < len(d.ids[i]):
				id, isReal = d.ids[i][n], true
			}
			if isReal {
				at = j
			}
			b.IDs, b.Real = append(b.IDs, id), append(b.Real, isReal)
		}
		last = append(last, k*b.Time+at)
	}
	return b, rows, last
}

// next computes the logits after the cells of a batch.
func (l *OnDevice) next(b device.Batch, last []int) (logits []float32, err error) {
	p, err := l.model.Forward(b, true)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	return p.Logits(last)
}

// Close gives the memory on the device back; the device stays open.
func (l *OnDevice) Close() error { return l.model.Close() }

var _ train.Policy = (*OnDevice)(nil)

// NewLockstepOn returns the policies of a base of which the kernels of a device compute, in mode w8a16. Weights, masks and the reference are those of
// [NewLockstep].
func NewLockstepOn(b *Base, d cuda.Device, o Options) (*Lockstep, error) {
	l, err := NewLockstep(b, lora.W8A16, o)
	if err != nil {
		return nil, err
	}
	own := func() Options { // masters of its own
		p := o
		p.Adapter = model.Adapter{}
		for name, f := range o.Adapter {
			f.A, f.B = slices.Clone(f.A), slices.Clone(f.B)
			p.Adapter[name] = f
		}
		return p
	}
	run, err := NewOnDevice(b, d, own())
	if err != nil {
		return nil, err
	}
	free := *run // the same model, other masters
	free.masters = newMasters(b.reference, own())
	for _, p := range run.params {
		free.add(p.Name, p.Shape, slices.Clone(p.Data))
	}
	l.run, l.free = run, &free
	return l, nil
}
