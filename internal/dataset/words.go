package dataset

import (
	"fmt"
	"strings"

	"plumbline/internal/rng"
)

// The catalogues of items that an explanation is asked for, by the names of the source's data sets: the question about an item.
var catalogues = map[string]string{
	"books": "Why read %s?",
	"ml25m": "Why see %s?",
	"steam": "Why play %s?",
}

// titles are the 64 items of every catalogue.
var titles = strings.Fields(`moss fern oak elm ash yew fox owl hare wren swan crow pike newt toad moth
	bell drum harp lute horn gong fife viol lamp lens coin ring rope knot sail keel
	dawn dusk noon rain snow hail mist gale peak vale moor cove reef isle dune lake
	iron zinc jade opal salt clay silk wool rice corn plum pear fig lime mint sage`)

// ItemPrompts returns the 64 questions of a catalogue, books, ml25m or steam, nil if there is no such one.
func ItemPrompts(catalogue string) []string {
	c, ok := catalogues[catalogue]
	if !ok {
		return nil
	}
	var list []string
	for _, t := range titles {
		list = append(list, fmt.Sprintf(c, t))
	}
	return list
}

// short are the words of the lists, of one or two letters so that a list of twenty fits sixty bytes.
var short = strings.Fields("a I it is so we go to do be in on up at as of my he or no")

// WordLists returns n questions about books, each answered by a sentence or two of 4 to 10 short words: what a model of bytes needs
// to have seen before the length of an answer can be a reward.
func WordLists(stream rng.Stream, n int) []Question {
	prompts := ItemPrompts("books")
	list := make([]Question, n)
	for i := range list {
		at := uint64(i) * 64
		draw := func(k uint64, n int) int { return int(stream.Word(at+k) % uint64(n)) }
		words := make([]string, 4+draw(0, 7))
		for j := range words {
			words[j] = short[draw(uint64(2+j), len(short))]
		}
		if cut := draw(1, len(words)); cut > 1 && cut < len(words)-2 {
			words[cut] += "."
		}
		list[i] = Question{Question: prompts[draw(40, len(prompts))], Answer: strings.Join(words, " ") + "."}
	}
	return list
}
