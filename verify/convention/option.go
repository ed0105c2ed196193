// Package convention gives names to the ways in which frameworks compute one formula.
//
// An [Option] is one decision: the degrees of freedom of a variance, the estimator of KL, what the loss is divided by. Its
// values carry the names under which a dump declares them and under which package rl computes them. A [Profile] is what one
// framework in one version decided, option by option, as it was read in its source or shown by running its release.
//
// Nothing here computes. Unknown ([Unknown]) and inapplicable ([NotApplicable]) are two states: the first is searched, the
// second never asked.
package convention

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"plumbline/reference/rl"
	"plumbline/verify/check"
)

// Stage is a step of the pipeline from ids to logged numbers.
type Stage string

const (
	Masks     Stage = "masks"
	LogP      Stage = "logp"
	KL        Stage = "kl"
	Reward    Stage = "reward"
	Advantage Stage = "advantage"
	Ratio     Stage = "ratio"
	TokenLoss Stage = "token_loss"
	Aggregate Stage = "aggregate"
	Gradient  Stage = "gradient"
	Scalars   Stage = "scalars"
)

// Stages lists the stages in the order in which a batch passes them.
var Stages = []Stage{Masks, LogP, KL, Reward, Advantage, Ratio, TokenLoss, Aggregate, Gradient, Scalars}

// Type is the kind of values that an option takes.
type Type uint8

const (
	EnumType     Type = iota // one of Values
	BoolType                 // true, false
	ChoiceType               // a number of Values
	NumberType               // a number within Range
	OrNoneType               // a number within Range, or none
	PairType                 // LOW,HIGH with LOW ≤ HIGH, or none
	AdaptiveType             // TARGET,HORIZON,N_STEPS, each within Range, or none
	SumType                  // WEIGHT*LOSS+…, losses of pairs, or none
)

var typeNames = []string{"enum", "bool", "choice", "number", "number or none", "LOW,HIGH or none", "TARGET,HORIZON,N_STEPS or none", "WEIGHT*LOSS+… or none"}

func (t Type) String() string { return typeNames[t] }

// Range bounds a number. The zero Range has no bounds.
type Range uint8

const (
	Any         Range = iota
	NotNegative       // ≥ 0
	Positive          // > 0
	Unit              // in [0, 1]
	AboveOne          // > 1
)

var rangeNames = []string{"any finite number", "a number ≥ 0", "a number > 0", "a number in [0, 1]", "a number > 1"}

func (r Range) String() string { return rangeNames[r] }

func (r Range) contains(x float64) bool {
	switch r {
	case NotNegative:
		return x >= 0
	case Positive:
		return x > 0
	case Unit:
		return x >= 0 && x <= 1
	case AboveOne:
		return x > 1
	}
	return true
}

// Option is a decision on which frameworks differ. An option that is read only under a value of another one, such as
// clip.high_is_absolute by the loss cispo, keeps its value in a profile whose default is another.
type Option struct {
	Name   string
	Type   Type
	Values []string // legal values of EnumType and ChoiceType, nil in the tables for words of package rl; for numbers, those that frameworks have
	Range  Range    // of numbers
	Doc    string   // what it decides; one line
	Source string   // section of the conventions, and frameworks that show it
	Stages []Stage  // those that read it, first the one it belongs to; empty: what comes after a dump's pipeline
}

// Legal says in words which values o takes.
func (o *Option) Legal() string {
	switch o.Type {
	case EnumType, ChoiceType:
		return strings.Join(o.Values, ", ")
	case BoolType:
		return "true, false"
	case NumberType:
		return o.Range.String()
	case OrNoneType:
		return o.Range.String() + ", or none"
	case PairType:
		return "LOW,HIGH with LOW ≤ HIGH, or none"
	case SumType:
		return "WEIGHT*LOSS+… of " + strings.Join(rl.Words("dpo.loss"), ", ") + ", _norm behind those per token; or none"
	}
	return "TARGET,HORIZON,N_STEPS, each " + o.Range.String() + ", or none"
}

// Parse reads a value of o as [Value.String] prints it. "?" is unknown; "–" and "-" are not applicable. The error names the
// option and its legal values.
func (o *Option) Parse(text string) (Value, error) {
	switch text {
	case "?":
		return Value{}, nil
	case "–", "-":
		return Value{kind: NotApplicable}, nil
	}
	if v, ok := o.parse(text); ok {
		return v, nil
	}
	return Value{}, fmt.Errorf("%s: %.64q is no legal value; want %s", o.Name, text, o.Legal())
}

func (o *Option) parse(text string) (Value, bool) {
	switch o.Type {
	case EnumType:
		return Value{kind: Enum, text: text}, slices.Contains(o.Values, text)
	case BoolType:
		return Value{kind: Bool, b: text == "true"}, text == "true" || text == "false"
	case ChoiceType:
		x, ok := parseNumber(text)
		return Value{kind: Number, num: [3]float64{x}}, ok && slices.Contains(o.Values, number(x))
	case NumberType:
		x, ok := parseNumber(text)
		return Value{kind: Number, num: [3]float64{x}}, ok && o.Range.contains(x)
	}
	if text == "none" {
		return Value{kind: None}, true
	}
	if o.Type == SumType {
		sum, err := rl.ParseDPOSum(text)
		return Value{kind: Enum, text: sum.String()}, err == nil
	}
	if o.Type == OrNoneType {
		x, ok := parseNumber(text)
		return Value{kind: Number, num: [3]float64{x}}, ok && o.Range.contains(x)
	}
	parts := strings.Split(text, ",")
	v := Value{kind: Tuple, n: 2}
	if o.Type == AdaptiveType {
		v.n = 3
	}
	if len(parts) != int(v.n) {
		return Value{}, false
	}
	for i, part := range parts {
		x, ok := parseNumber(strings.TrimSpace(part))
		if !ok || !o.Range.contains(x) {
			return Value{}, false
		}
		v.num[i] = x
	}
	return v, o.Type != PairType || v.num[0] <= v.num[1]
}

// Options returns all options in the order in which they are printed. The slice is shared and must not be changed.
func Options() []*Option { return index().list }

// Names returns the names of all options in the same order.
func Names() []string { return slices.Clone(index().names) }

// optionIndex is all options. Those of groups that few frameworks have need no line in the tables of profiles: a profile that does
// not name one has nothing to which it could apply.
type optionIndex struct {
	list  []*Option
	names []string
	at    map[string]int
	few   map[string]bool
}

var index = sync.OnceValue(func() *optionIndex {
	x := &optionIndex{at: map[string]int{}, few: map[string]bool{}}
	for _, group := range []struct {
		options []Option
		few     bool
	}{{statistics, false}, {rewards, false}, {groups, false}, {klOptions, false}, {losses, false}, {preferences, true}, {aggregation, false}, {afterwards, false}, {optimisers, true}, {projections, true}} {
		for _, option := range group.options {
			o := &option // a copy: the tables stay as they are written
			if _, twice := x.at[o.Name]; twice {
				panic("convention: option " + o.Name + " is listed twice")
			}
			if o.Type == EnumType {
				words := rl.Words(o.Name)
				if (words == nil) == (o.Values == nil) {
					panic("convention: the words of " + o.Name + " stand nowhere, or twice")
				}
				if words != nil {
					o.Values = words
				}
			}
			x.at[o.Name], x.few[o.Name] = len(x.list), group.few
			x.list = append(x.list, o)
			x.names = append(x.names, o.Name)
		}
	}
	return x
})

// Find returns the option of that name, or an error that names the nearest one.
func Find(name string) (*Option, error) {
	if i, ok := index().at[name]; ok {
		return index().list[i], nil
	}
	return nil, fmt.Errorf("no option %.64q; did you mean %q?", name, check.Nearest(clipped(name), index().names))
}

// Parse reads the value text of the named option.
func Parse(name, text string) (Value, error) {
	o, err := Find(name)
	if err != nil {
		return Value{}, err
	}
	return o.Parse(text)
}

// clipped bounds the time of the search for a nearest name.
func clipped(s string) string { return s[:min(len(s), 64)] }
