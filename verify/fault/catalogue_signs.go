package fault

// signFaults are what checks that assert, and compare nothing, may find.
var signFaults = signs("GRADIENT-NAN",
	"ADV-NAN",
	"ADV-ZERO",
	"NAN-OUTSIDE",
	"NAN-EMPTY-ROW",
	"LOGP-FIRST-TOKEN",
	"NEW-OTHER-PASS",
	"OLD-OTHER-PASS",
	"OLD-OTHER-BATCH",
	"OLD-STALE",
	"REF-NOT-POLICY",
	"REF-IS-POLICY",
	"REF-IS-GEN",
	"ROWS-SWAPPED",
	"GEN-UNADAPTED",
	"GEN-RAW",
	"GEN-TEMPERATURE-TWICE",
	"GEN-TRUNCATED",
	"GEN-OTHER-TOKEN",
	"GEN-ZERO",
	"LOGP-OLD-ZERO",
	"LOGP-NEW-ZERO",
	"LOGP-NAN",
	"REF-ZERO",
	"LOGP-END-ZERO",
	"VALUES-OTHER-PASS",
	"MASK-NO-EOS",
	"MASK-PAST-EOS",
	"MASK-SHIFT",
	"MASK-PACKED-FIRST",
	"MASK-EMPTY",
	"MASK-TRUNCATED-KEPT",
	"IDS-RETOKENISED",
	"PROMPT-TRUNCATED",
	"ROWS-REPEATED",
	"GROUP-IDENTICAL",
	"SCORES-CONSTANT")

func signs(ids ...string) (list []*Hypothesis) {
	for _, id := range ids {
		list = append(list, &Hypothesis{ID: id})
	}
	return list
}
