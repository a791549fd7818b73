-- Learn how far the disease has progressed after a year from what is known of a patient.
SELECT * FROM patients
TRAIN regressor.DNN
WITH hidden_units=[16]
LABEL progression
INTO progression;
