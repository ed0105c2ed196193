package check

// Finding is one cause of what is wrong: results that one bug produces are one finding.
type Finding struct {
	Verdict Verdict
	Name    string // of the bug, "ADV-DDOF"; else of the check
	Title   string // what the program does, or what the results say
	Known   bool   // all of its results are in the baseline
	Pattern bool   // what is seen resembles the bug; nothing was recomputed
	Where   string // "loss, step 1, micro-batch 1"
	Got     string // and the right value, "" where nothing was measured
	Right   string

	Yours, Theirs string   // the expression that gives these numbers, and the one that is due
	Whose         string   // "TRL": whose the second is
	Evidence      string   // what the explanation reproduces
	Or            []string // other explanations that give the same numbers, and settings under which they would be right
	Effect        string   // on the training
	Fix           string
	Seen          []string // checks, the first of which the numbers are of
	First         int      // step

	Cause   string   // of a symptom, as its guide has it
	Better  string   // the cause that is more likely, or the rest of it
	Follows []string // what else was seen and comes from it
	Dump    string   // what would decide it
	Results []int    // indices in the report
}

// Brief is a report in the few lines that fit on a screen.
type Brief struct {
	Head     []string // what was judged, and under which convention
	Clean    string   // said where nothing is wrong
	Metrics  []Metric // of a log, in its order
	Tables   []Table  // below the head, as they are
	Findings []Finding
	Stages   []Stage
	Coverage string   // how much of what can go wrong would show
	Unread   string   // what was logged and is not read, behind Coverage where there is room
	Next     []string // commands
}

// Table is lines under a heading that are not wrapped.
type Table struct {
	Title string
	Lines []string
}

// Stage is a stage of the pipeline and the worst verdict in it, 0 where nothing was judged.
type Stage struct {
	Name    string
	Verdict Verdict
}

// Metric is a row of what a log says: a number over the steps of a run.
type Metric struct {
	Name    string
	Spark   string // the run in a few blocks
	Verdict Verdict
	First   int64 // the first bad step, −1 where there is none
	Text    string
	Formula string
	Trap    string // what the same name means elsewhere
}
