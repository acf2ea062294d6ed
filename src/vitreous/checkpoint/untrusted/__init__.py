"""Reading files that strangers wrote: nothing in them is executed, no size is believed."""
