package keylimit

// WholeShare exports wholeShare for tests.
var WholeShare = wholeShare

// ShiftUse shifts the times at which keys were used, like a step of the clock.
func (t *Table) ShiftUse(minutes int64) {
	for _, one := range t.use.known {
		for i := range one.slots {
			one.slots[i].minute += minutes
		}
	}
}
