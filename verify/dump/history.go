package dump

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// history is what the steps so far have said of their rows.
type history struct {
	rows     map[string]*sampled
	cells    int
	fresh    generations
	parts    int  // steps of new rows whose rows are there, where they have no sample_id
	rollouts int  // that have begun
	alike    int  // rollouts after the first whose reference was the old policy bit by bit
	moved    bool // some update has left the old log-probs
	learnt   bool // some gradient, or advantage, was not 0

	asynchronous bool // rollouts are declared to be those of older weights
	last         int  // the step before
	lastAgain    bool // which used rows that an earlier one had used
	olds         map[uint64]oldOf
	engine       engineSizes
	uses         firstUses
	update       *stage.Discrepancy // of new and old log-probs at the best first update so far
}

// sampled is a row as the first step that used it had it.
type sampled struct {
	step, row int
	ids       uint64               // of its first tokens
	twice     bool                 // another row of its rollout is alike: which of them comes again is not known
	cells     map[string][]float64 // nil: the step was not read, or long ago
	age       int                  // the generation that holds the cells
}

// generations bound the cells that are in memory. Those of rows that were not met for two generations are dropped; who meets the row
// again reads its step again.
type generations struct {
	now        int
	young, old []*sampled
	cells      int // of the young
}

// keep puts the cells of a row among the young.
func (g *generations) keep(s *sampled, cells map[string][]float64, n int) {
	if s.cells = cells; cells == nil || s.age == g.now+1 {
		return
	}
	s.age = g.now + 1
	g.young, g.cells = append(g.young, s), g.cells+n
	if g.cells < freshCells {
		return
	}
	for _, s := range g.old {
		if s.age == g.now {
			s.cells = nil
		}
	}
	g.now, g.old, g.young, g.cells = g.now+1, g.young, nil, 0
}

// kept tensors are those that belong to the rollout, not to the update.
var rolloutTensors = []string{"logp_old", "logp_ref", "logp_gen"}

const (
	mostCells  = 1 << 23 // of the rows that are remembered of a run
	leastCells = 32      // that a row counts for, however short it is: its name takes memory, too
)

// freshCells are the cells of a generation, each for three tensors: 25 MB. No report depends on it.
var freshCells = 1 << 20

// recall returns, for each row of a step of cols columns, the earlier step that had it first, nil where none had, whether the step
// begins a rollout or a mini-batch of one, and whether it is known that no row of it was there before; then it takes the step's rows down,
// with the cells of b. Without sample_id a rollout is the span steps of new rows that it is declared to be, or those up to rows that come again.
func (h *history) recall(n *StepNotes, b *dump.Batch, span int) (earlier []*sampled, begins, fresh bool) {
	if h.rows == nil {
		h.rows = map[string]*sampled{}
	}
	known, named := 0, 0
	for _, k := range n.Keys {
		if k != "" {
			named++
		}
		if h.rows[k] != nil {
			known++
		}
	}
	// Without sample_id, two rollouts may have some short responses in common, but not all of the rows of a step.
	again := known > 0 && (n.ByID || known == len(n.Keys) && len(n.Keys) >= 4 && n.Tokens >= 24)
	if n.Keys == nil {
		return nil, true, false
	}
	if !n.ByID && !again {
		if h.parts++; h.lastAgain || h.parts > span {
			h.rows, h.cells, h.parts = map[string]*sampled{}, 0, 1
		}
	}
	earlier = make([]*sampled, len(n.Keys))
	for r, k := range n.Keys {
		if k == "" {
			continue
		}
		if s := h.rows[k]; s != nil && s.twice {
			continue
		} else if s != nil && !again && !n.ByID { // two rows of a rollout that are alike
			s.twice, s.cells = true, nil
			continue
		} else if s != nil {
			earlier[r] = s
			h.fresh.keep(s, s.cells, max(n.Cols, leastCells))
			continue
		}
		weight := max(n.Cols, leastCells)
		if h.cells += weight; h.cells > mostCells {
			h.rows, h.cells = map[string]*sampled{}, weight
		}
		h.rows[k] = &sampled{step: n.Step, row: r}
		if r < len(n.Starts) {
			h.rows[k].ids = n.Starts[r].IDs
		}
		h.fresh.keep(h.rows[k], cellsOf(b, r), weight)
	}
	return earlier, !again, known == 0 && 2*named > len(n.Keys)
}

// cellsOf copies what a row keeps over the updates of its rollout, nil where the batch was not read.
func cellsOf(b *dump.Batch, row int) map[string][]float64 {
	if b.Tensors == nil {
		return nil
	}
	cells := map[string][]float64{}
	for _, name := range rolloutTensors {
		if x := b.Token(name); x != nil {
			cells[name] = slices.Clone(x[row*b.Cols : (row+1)*b.Cols])
		}
	}
	return cells
}
