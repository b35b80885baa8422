"""The tensor memory accelerator: tensor maps, boxes that they move, and the transaction barriers that say when."""
