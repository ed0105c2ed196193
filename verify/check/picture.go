package check

// Pictures are what a report can draw beside its words.
type Pictures struct {
	Grid   *Grid // nil: no stages were judged by step
	Heats  []Heat
	Charts []Chart
}

// Grid is the verdict of every stage in every step.
type Grid struct {
	Stages   []string
	Steps    []int       // ascending
	Verdicts [][]Verdict // of Stages × Steps; 0 where nothing was judged
}

// Heat is |Δ|/limit of the elements of one output that has one for each token.
type Heat struct {
	Title  string // "advantage/group, step 3"
	Rows   []HeatRow
	Hidden int // rows that are not shown, none of which is worse than those that are
	Cut    int // columns that are not shown
}

// HeatRow is a sequence.
type HeatRow struct {
	Name  string
	Cells []Cell
}

// Cell is one token.
type Cell struct {
	Place      string  // "row 3 token 17"
	Text       string  // of the token; "" where it is not known or must not be shown
	Masked     bool    // not an action of the policy
	Judged     bool    // else the numbers mean nothing
	Ratio      float64 // |got − right| / limit
	Got, Right float64
}

// Chart is lines, points or bars over one axis.
type Chart struct {
	Title, X, Y string
	Log         bool // y is logarithmic: values of 0 are not drawn
	Series      []Series
	Limit       *Limit
	Marks       []Mark
	Diagonal    bool // y = x is drawn, where points should lie
}

// Series is numbers at places; X nil stands for 0, 1, 2, ….
type Series struct {
	Name   string
	Kind   SeriesKind
	X, Y   []float64
	Lo, Hi []float64 // of joined values the smallest and the largest, nil where none were joined
}

// SeriesKind is how a series is drawn.
type SeriesKind int

const (
	Line SeriesKind = iota
	Points
	Rings // points that others may lie on
	Columns
)

// Limit is a height that is not to be crossed.
type Limit struct {
	Name  string
	Value float64
}

// Mark is a place on the x axis where the evidence is.
type Mark struct {
	X    float64
	Text string
}
