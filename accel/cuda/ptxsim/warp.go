package ptxsim

import (
	"cmp"
	"fmt"
	"math/bits"
)

const full = ^uint32(0)

// Launch is one run of a kernel: its grid, its block, its arguments as bytes by the layout of Params, and the shared memory that is asked
// for beside what the text declares.
type Launch struct {
	Grid, Block [3]int
	Shared      int
	Args        []byte
	Options
}

// run is the state of a launch.
type run struct {
	Launch
	kernel *Kernel
	memory *Memory
	id     uint32
	stats  Stats
	budget uint64
	last   *allocation // of the access before
}

// block is the state of a block of threads.
type block struct {
	*run
	index   [3]int
	number  uint32 // 1 + the place among all blocks
	threads int
	shared  []byte
	marks   []mark // of granule bytes of shared memory
	epoch   uint32
	warps   []*warp
}

// group are lanes that stand at one instruction.
type group struct {
	pc   int
	mask uint32
}

type warp struct {
	launch *run
	*block
	number  int
	live    uint32 // lanes that have not ended
	active  group
	others  []group
	waits   bool // at the block's barrier
	syncs   uint32
	regs    []uint64
	set     []uint32 // lanes that have written a register
	preds   []uint32
	pset    []uint32
	at      *instr
	copies  [32][]copying // asynchronous copies that were started, by lane
	groups  [32]int       // groups that were closed
	failure *Finding
}

// copying is an asynchronous copy on its way.
type copying struct {
	group      int
	to         int // in shared memory
	from       uint64
	bytes, all int // how many come from memory, and how many are written
}

func (w *warp) reg(i int) *[32]uint64 { return (*[32]uint64)(w.regs[i*32 : i*32+32]) }

func (w *warp) pred(i int, m uint32) uint32 {
	if missing := m &^ w.pset[i]; missing != 0 {
		w.fail(Uninitialised, missing, 0, "a predicate that nothing has written")
	}
	return w.preds[i]
}

func (w *warp) setPred(i int, m, v uint32) {
	w.preds[i] = w.preds[i]&^m | v&m
	w.pset[i] |= m
}

// fail stops the launch. The first finding stays.
func (w *warp) fail(kind Kind, lanes uint32, addr uint64, format string, args ...any) {
	if w.failure != nil {
		return
	}
	t := w.number*32 + bits.TrailingZeros32(lanes)
	x, y := w.Block[0], w.Block[1]
	w.failure = &Finding{Kind: kind, Kernel: w.kernel.Name, Block: w.index, Thread: [3]int{t % x, t / x % y, t / x / y}, Address: addr,
		Line: w.at.line, Text: w.at.text, What: fmt.Sprintf(format, args...)}
}

func (w *warp) who(lane int) who {
	return who{w.block.number, w.epoch, w.syncs, int16(w.number*32 + lane)}
}

// Run runs the kernel over the memory and returns what it did. An error is a *[Finding], or says what is wrong with the launch.
func (k *Kernel) Run(mem *Memory, l Launch) (Stats, error) {
	threads := 1
	for i := range 3 {
		if l.Grid[i] < 1 || l.Block[i] < 1 || l.Grid[i] > 1<<31-1 || l.Block[i] > 1024 {
			return Stats{}, fmt.Errorf("ptxsim: kernel %s: a grid of %v blocks of %v threads", k.Name, l.Grid, l.Block)
		}
		threads *= l.Block[i]
	}
	switch {
	case threads > 1024 || k.MaxThreads > 0 && threads > k.MaxThreads:
		return Stats{}, fmt.Errorf("ptxsim: kernel %s: %d threads in a block, at most %d", k.Name, threads, min(1024, max(k.MaxThreads, 1)))
	case len(l.Args) != k.paramBytes:
		return Stats{}, fmt.Errorf("ptxsim: kernel %s takes %d bytes of arguments, not %d", k.Name, k.paramBytes, len(l.Args))
	case l.Shared < 0 || k.Shared+l.Shared > maxSharedMem:
		return Stats{}, fmt.Errorf("ptxsim: kernel %s: %d bytes of shared memory, at most %d", k.Name, k.Shared+l.Shared, maxSharedMem)
	}
	mem.launch++
	r := &run{Launch: l, kernel: k, memory: mem, id: mem.launch, budget: cmp.Or(l.Budget, 4e9)}
	shared := k.Shared
	if k.dynamic {
		shared = (shared+15)&^15 + l.Shared
	}
	b := &block{run: r, threads: threads, shared: make([]byte, shared), marks: make([]mark, (shared+k.granule-1)/k.granule)}
	for i := range (threads + 31) / 32 {
		b.warps = append(b.warps, &warp{launch: r, block: b, number: i, regs: make([]uint64, 32*k.registers), set: make([]uint32, k.registers),
			preds: make([]uint32, k.predicates), pset: make([]uint32, k.predicates)})
	}
	for z := range l.Grid[2] {
		for y := range l.Grid[1] {
			for x := range l.Grid[0] {
				b.index = [3]int{x, y, z}
				b.number = uint32((z*l.Grid[1]+y)*l.Grid[0]+x) + 1
				if err := b.execute(); err != nil {
					return r.stats, err
				}
			}
		}
	}
	return r.stats, nil
}

// execute runs one block to its end.
func (b *block) execute() error {
	clear(b.shared)
	clear(b.marks)
	b.epoch = 0
	b.stats.Blocks++
	for _, w := range b.warps {
		w.start()
		b.stats.Warps++
	}
	for {
		var waiting, ended int
		for i := range b.warps {
			if b.Reverse {
				i = len(b.warps) - 1 - i
			}
			w := b.warps[i]
			if w.live != 0 && !w.waits {
				w.advance()
				if w.failure != nil {
					return w.failure
				}
			}
			if w.live == 0 {
				ended++
			} else {
				waiting++
			}
		}
		if waiting == 0 {
			return nil
		}
		if ended > 0 {
			for _, w := range b.warps {
				if w.live != 0 {
					w.fail(Barrier, w.live, 0, "%d of %d warps ended before this barrier", ended, len(b.warps))
					return w.failure
				}
			}
		}
		b.epoch++
		b.stats.Barriers++
		for _, w := range b.warps {
			w.waits = false
		}
	}
}

func (w *warp) start() {
	w.live = full
	if rest := w.threads - w.number*32; rest < 32 {
		w.live = 1<<rest - 1
	}
	w.active, w.others, w.waits, w.syncs = group{0, w.live}, w.others[:0], false, 0
	clear(w.set)
	clear(w.pset)
	for l := range 32 {
		w.copies[l], w.groups[l] = w.copies[l][:0], 0
	}
	for _, s := range w.kernel.special {
		r := w.reg(s.reg)
		w.set[s.reg] = full
		for l := range 32 {
			r[l] = w.special(s.name, l)
		}
	}
}

func (w *warp) special(name string, lane int) uint64 {
	t := w.number*32 + lane
	axis := int(name[len(name)-1] - 'x')
	switch name[:len(name)-2] {
	case "%tid":
		return uint64([3]int{t % w.Block[0], t / w.Block[0] % w.Block[1], t / w.Block[0] / w.Block[1]}[axis])
	case "%ntid":
		return uint64(w.Block[axis])
	case "%ctaid":
		return uint64(w.index[axis])
	case "%nctaid":
		return uint64(w.Grid[axis])
	}
	one := uint64(1) << lane
	switch name {
	case "%laneid":
		return uint64(lane)
	case "%lanemask_eq":
		return one
	case "%lanemask_lt":
		return one - 1
	case "%lanemask_le":
		return one<<1 - 1
	case "%lanemask_gt":
		return low32(^(one<<1 - 1))
	case "%lanemask_ge":
		return low32(^(one - 1))
	}
	panic("ptxsim: special register " + name)
}

// advance runs until the warp waits at a barrier, ends or fails.
func (w *warp) advance() {
	code := w.kernel.code
	for {
		if len(w.others) > 0 {
			w.meet()
		}
		if w.active.pc >= len(code) {
			w.fail(Bounds, w.active.mask, 0, "the code ends here")
			return
		}
		in := &code[w.active.pc]
		w.at = in
		m := w.active.mask
		if in.guard >= 0 {
			p := w.pred(in.guard, m)
			if in.not {
				p = ^p
			}
			m &= p
		}
		w.stats.Instructions++
		w.stats.ThreadInstructions += uint64(bits.OnesCount32(m))
		if w.stats.Instructions > w.budget {
			w.fail(Endless, w.active.mask, 0, "%d instructions of warps were run", w.budget)
		}
		if w.Reached != nil && m != 0 {
			w.Reached[in.line] = true
		}
		w.active.pc++
		switch in.kind {
		case plain:
			if m != 0 {
				in.exec(w, m)
			}
		case branch:
			switch m {
			case 0:
			case w.active.mask:
				w.active.pc = in.target
			default:
				w.others = append(w.others, group{in.target, m})
				w.active.mask &^= m
			}
		case exit:
			w.live &^= m
			w.active.mask &^= m
			if w.active.mask == 0 {
				if len(w.others) == 0 {
					return
				}
				w.active, w.others = w.others[len(w.others)-1], w.others[:len(w.others)-1]
			}
		case blockBarrier:
			if m != w.live {
				w.fail(Barrier, w.active.mask, 0, "lanes %08x of the warp are here, %08x have not ended", m, w.live)
			}
			w.waits = true
		}
		if w.failure != nil || w.waits {
			return
		}
	}
}

// meet joins the groups that stand at the lowest instruction and makes them the active one.
func (w *warp) meet() {
	low := w.active.pc
	for _, g := range w.others {
		low = min(low, g.pc)
	}
	w.others = append(w.others, w.active)
	here, rest := uint32(0), w.others[:0]
	for _, g := range w.others {
		if g.pc == low {
			here |= g.mask
		} else {
			rest = append(rest, g)
		}
	}
	w.active, w.others = group{low, here}, rest
}
