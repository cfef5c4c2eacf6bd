"""TFPark's words: datasets with placeholders, an optimizer for a loss, a predictor for outputs, Keras models."""
