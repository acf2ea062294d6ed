"""What a model looks at, and how faithful the answer is.

- ``faithfulness/``: whether class maps agree with what the model's predictions depend on.
"""
