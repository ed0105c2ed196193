package trainer_test

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/convention"
	"plumbline/verify/plant/trainer"
)

// candidates calls f with configurations until it returns true: all profiles and kinds, with everything on that a bug may
// need.
func candidates(t *testing.T, seeds int, f func(c trainer.Config) bool) {
	for seed := range uint64(seeds) {
		r := rand.New(rand.NewPCG(seed, 3))
		try := func(set *convention.Set) bool {
			return f(trainer.Config{
				Set: set, Seed: seed, Rows: 16, Cols: 10, Group: 4, Files: 2 + int(seed%2), Ranks: 1 + int(seed%2),
				Logits: true, Holes: seed%2 == 0, Rewards: 2, FirstStep: seed%4 == 3, DType: format.F32,
			})
		}
		for _, p := range convention.Profiles() {
			if try(trainer.Complete(p, r)) {
				return
			}
		}
		for _, set := range varied(t, seed) {
			if try(set) {
				return
			}
		}
	}
}

func TestEveryPlantShows(t *testing.T) {
	for _, p := range trainer.Plants {
		t.Run(p.ID, func(t *testing.T) {
			shown := false
			candidates(t, 12, func(c trainer.Config) bool {
				if !p.Applies(c.Set) {
					return false
				}
				b, _, visible := trainer.Faulty(c, p.ID)
				shown = visible
				if visible && !strings.Contains(p.Bug().Title, "NaN") && !strings.Contains(p.ID, "NAN") { // what is not finite is the bug
					finite(t, b)
				}
				return visible
			})
			require.True(t, shown)
		})
	}
}

// rowsOfDumps are the rows of the catalogue whose input is a dump: of part 1 those that say so, of part 2 those whose check
// is one of V01–V06, V08–V10, V12–V19, V23–V25, V28, V30, V32, V34 and V35.
const rowsOfDumps = "A3 A10 H1 H2 B1 B2 B3 B4 H5 H7a H7c H7e C3 C4 C5 C13 C19 H13b H13c H13e H13f D1 D4 D10 P001 P003 P004 P012 P014 P015 " +
	"P016 P017 P018 P019 P020 P021 P023 P024 P025 P026 P027 P028 P029 P030 P031 P032 P033 P034 P035 P036 P037 P038 P039 " +
	"P041 P043 P044 P047 P048 P049 P052 P053 P054 P055 P057 P058 P059 P060 P061 P062 P063 P064 P065 P066 P068 P069 P070 " +
	"P071 P075 P077 P079 P081 P083 P084 P085 P088 P089 P090 P091 P092 P093 P094 P095 P097 P098 P099 P100 P101 P104 P105 " +
	"P108 P109 P110 P111 P114 P115 P116 P119 P120 P121 P122 P123 P125 P126 P127 P129 P130 P131 P132 P133 P134 P136 P137 " +
	"P138 P139 P147 P149 P150 P152 P155 P156 P160 P161 P162 P163 P165 P168 P169 P170 P171 P172 P173 P174 P175 P176 P179 " +
	"P180 P184 P185 P187 P188 P189 P190 P191 P199 P200 P201 P202 P205 P206 P207 P208 P209 P211 P212 "

// Plants say which rows they stand for; every row of a dump is stood for or left out with a reason, not both.
func TestRows(t *testing.T) {
	row := regexp.MustCompile(`^([A-D]\d+|H\d+[a-f]?|[PV]\d{2,3})$`)
	planted := map[string]string{}
	ids := map[string]bool{}
	for _, p := range trainer.Plants {
		require.False(t, ids[p.ID], p.ID)
		ids[p.ID] = true
		require.NotEmpty(t, p.Bug().Rows, p.ID)
		require.NotEmpty(t, p.Outputs, p.ID)
		require.NotNil(t, trainer.FindPlant(p.ID))
		for _, r := range p.Bug().Rows {
			require.Regexp(t, row, r, p.ID)
			planted[r] = p.ID
		}
	}
	for _, l := range trainer.LeftOutRows {
		require.Regexp(t, row, l.Row)
		require.Empty(t, planted[l.Row], "%s is planted as %s and left out", l.Row, planted[l.Row])
		require.Greater(t, len(l.Why), 20, l.Row)
		planted[l.Row] = "left out"
	}
	require.Nil(t, trainer.FindPlant("NO-SUCH-PLANT"))
	require.Panics(t, func() { trainer.Faulty(trainer.Config{}, "NO-SUCH-PLANT") })
	for _, r := range strings.Fields(rowsOfDumps) {
		require.NotEmpty(t, planted[r], "%s is neither planted nor left out", r)
	}
}
