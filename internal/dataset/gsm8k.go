// Package dataset reads the data that trainers train on.
package dataset

import (
	"bytes"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/rng"
)

// maxRows and maxFile bound a file of questions.
const (
	maxRows = 10_000_000
	maxFile = 1 << 30
)

// Question is one row of GSM8K: a question, an answer with its steps and, after ####, the number.
type Question struct {
	Question, Answer string
	Truth            float64 // the number
}

// ReadGSM8K reads JSON lines, or one JSON array, of {"question": …, "answer": …}; other keys are ignored, empty lines too. A row without a question,
// without an answer or without a number after the last #### of its answer is an error with the number of its line or row.
func ReadGSM8K(path string) ([]Question, error) {
	data, err := format.ReadFile(path, maxFile)
	if err != nil {
		return nil, err
	}
	return ParseGSM8K(path, data)
}

// ParseGSM8K is ReadGSM8K for the bytes of a file. A file that begins with [ is one JSON array of such rows, counted from 1.
func ParseGSM8K(path string, data []byte) ([]Question, error) {
	if bytes.HasPrefix(data, []byte("PAR1")) { // one conversion by hand costs less than a reader with five codecs
		return nil, format.Malformed(path, "", "is Parquet, and JSON lines are read: python -c 'import pandas, sys; pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], "+
			"orient=\"records\", lines=True)' %s %s", format.ShellQuote(path), format.ShellQuote(strings.TrimSuffix(path, ".parquet")+".jsonl"))
	}
	var list []Question
	add := func(s *format.Scanner, unit string, n int) error {
		where := fmt.Sprintf("%s %d", unit, n)
		if len(list) == maxRows {
			return format.Malformed(path, where, "more than %d rows", maxRows)
		}
		q, err := parseRow(s, path, where, unit == "line")
		list = append(list, q)
		return err
	}
	if text := bytes.TrimSpace(data); len(text) > 0 && text[0] == '[' {
		s := format.NewScanner(path, text, 0)
		var bad error // of a row, with its number
		err := s.Array(func(i int) error {
			bad = add(s, "row", i+1)
			return bad
		})
		if bad != nil {
			return nil, bad
		}
		if err == nil {
			err = s.End()
		}
		if err != nil {
			return nil, err
		}
	} else {
		line := 0
		for text := range bytes.Lines(data) {
			line++
			if len(bytes.TrimSpace(text)) == 0 {
				continue
			}
			if err := add(format.NewScanner(path, text, 0), "line", line); err != nil {
				return nil, err
			}
		}
	}
	if len(list) == 0 {
		return nil, format.Malformed(path, "", "has no rows")
	}
	return list, nil
}

// parseRow reads one row; nothing may follow one that is alone.
func parseRow(s *format.Scanner, path, where string, alone bool) (q Question, err error) {
	has := map[string]bool{}
	err = s.Object(func(key string) (err error) {
		has[key] = true
		switch key {
		case "question":
			q.Question, err = s.String()
		case "answer":
			q.Answer, err = s.String()
		default:
			err = s.Skip()
		}
		return err
	})
	if err == nil && alone {
		err = s.End()
	}
	if err != nil {
		return q, format.Malformed(path, where, "no row: %v", err)
	}
	for _, key := range []string{"question", "answer"} {
		if !has[key] {
			return q, format.Malformed(path, where, "no field %q", key)
		}
	}
	q.Question, q.Answer = strings.Clone(q.Question), strings.Clone(q.Answer)
	var ok bool
	if q.Truth, ok = Number(q.Answer); !ok {
		return q, format.Malformed(path, where, "no number after #### in the answer")
	}
	return q, nil
}

// marked is a number after ####: thousands commas, a dollar sign and a final full stop are not part of it.
var marked = regexp.MustCompile(`^####\s*\$?(-?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+))`)

// Number returns the number after the last #### of a text that one follows.
func Number(text string) (float64, bool) {
	for at := strings.LastIndex(text, "####"); at >= 0; at = strings.LastIndex(text[:at+3], "####") {
		if strings.HasPrefix(text[at+4:], "#") {
			continue // a longer run, whose end was looked at
		}
		if m := marked.FindStringSubmatch(text[at:]); m != nil {
			x, err := strconv.ParseFloat(strings.ReplaceAll(m[1], ",", ""), 64)
			return x, err == nil && !math.IsInf(x, 0)
		}
	}
	return 0, false
}

// Reward is 1 for a response whose number is the true one (to 1e-9 of it, or 1e-6), 0.1 for another number, and 0 for none.
func Reward(response string, truth float64) float64 {
	x, ok := Number(response)
	switch {
	case !ok:
		return 0
	case math.Abs(x-truth) <= max(1e-9*max(math.Abs(x), math.Abs(truth)), 1e-6):
		return 1
	}
	return 0.1
}

// Additions returns n generated questions "a+b" in GSM8K's form, with a and b from 0 to most, drawn from stream.
func Additions(stream rng.Stream, n, most int) []Question {
	list := make([]Question, n)
	for i := range list {
		a := int(stream.Uniform(uint64(2*i)) * float64(most+1))
		b := int(stream.Uniform(uint64(2*i)+1) * float64(most+1))
		list[i] = Question{Question: fmt.Sprintf("%d+%d", a, b), Answer: fmt.Sprintf("#### %d", a+b), Truth: float64(a + b)}
	}
	return list
}

// Order returns the index of the i-th sample of an endless pass over n rows: every n samples are a new permutation.
type Order struct {
	stream rng.Stream
	n      int
	epoch  int
	perm   []int
}

// NewOrder returns an order of n > 0 rows.
func NewOrder(stream rng.Stream, n int) *Order { return &Order{stream: stream, n: n, epoch: -1} }

// At returns the row of sample i.
func (o *Order) At(i int) int {
	if epoch := i / o.n; epoch != o.epoch {
		o.epoch = epoch
		o.perm = make([]int, o.n)
		for j := range o.perm { // Fisher and Yates, from the words of this epoch alone
			k := int(o.stream.Uniform(uint64(epoch)*uint64(o.n)+uint64(j)) * float64(j+1))
			o.perm[j] = o.perm[k]
			o.perm[k] = j
		}
	}
	return o.perm[i%o.n]
}

// HoldOut takes n questions, drawn from stream, out of a list with all rows that ask the same, and returns the other rows and
// those n. It is an error if no row is left to train on.
func HoldOut(list []Question, n int, stream rng.Stream) (train, held []Question, err error) {
	if n == 0 {
		return list, nil, nil
	}
	order, out := NewOrder(stream, len(list)), map[string]bool{}
	for i := 0; i < len(list) && len(held) < n; i++ {
		if q := list[order.At(i)]; !out[q.Question] {
			out[q.Question] = true
			held = append(held, q)
		}
	}
	for _, q := range list {
		if !out[q.Question] {
			train = append(train, q)
		}
	}
	if len(held) < n || len(train) == 0 {
		different := map[string]bool{}
		for _, q := range list {
			different[q.Question] = true
		}
		return nil, nil, fmt.Errorf("the rows have %d different questions, which leaves none to train on after %d", len(different), n)
	}
	return train, held, nil
}
